"""The one pass on a GPU beside the same on the CPU: lists, tables, and the arithmetic that its proof relies on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.pipeline.search.device import loaded
from aoq.pipeline.search.device.arithmetic import error_bound, products_of
from aoq.pipeline.search.device.choice import on_device
from aoq.pipeline.search.device.room import Room, Tile, plan_room
from aoq.pipeline.search.device.scan import multiply
from aoq.pipeline.search.device.vectors import Vectors
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.runners import search_problem
from tests.search.test_backends import mined
from tests.search.test_device import KINDS, PRECISIONS, adversarial, hashes

pytestmark = pytest.mark.gpu


@pytest.fixture(params=PRECISIONS)
def precision(request, device):
    if device.type == "cuda" and request.param != "float32" and torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("this GPU multiplies float32 only")
    return request.param


@pytest.mark.parametrize("kind", [*KINDS, "one direction"])
@pytest.mark.parametrize("size", [7, 1024, 4096])
def test_products_are_within_their_bound(device, precision, size, kind):
    """All of one sign and of one size is the worst for sums that are cut."""
    sides = [adversarial(seed, 256, "normal" if kind == "one direction" else kind, size) for seed in (0, 1)]
    if kind == "one direction":
        sides = [np.abs(side) for side in sides]
    one, other = (Vectors.load(side, precision, device, resident=True) for side in sides)
    with products_of(precision):
        near = multiply(*(next(side.rounded([(0, 256)])) for side in (one, other))).double()
    exact = one.rows(torch.arange(256, device=device)).double() @ other.resident.double().T
    assert (near - exact).abs().max() <= error_bound(one.largest, other.largest, size, precision)


@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_vectors_have_the_lists_of_the_cpu(device, precision, kind):
    images, captions = adversarial(0, 200, kind, 64), adversarial(1, 900, kind, 64)
    problem = Problem(images, captions, np.arange(900, dtype=np.int32) % 200, 40, 10, device="cpu")
    ours = search_problem(problem, search=on_device(device, precision)).lists
    theirs = search_problem(replace(problem), search="onepass").lists
    for direction in DIRECTIONS:
        for column in ("negative_ids", "scores", "positive_score"):
            assert getattr(ours[direction], column).tobytes() == getattr(theirs[direction], column).tobytes()


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, 256))
    images = (centres[rng.integers(0, 50, 3000)] + rng.normal(size=(3000, 256))).astype(np.float32)
    captions = np.repeat(images, 5, axis=0) + rng.normal(size=(15000, 256)).astype(np.float32)
    captions[rng.integers(0, 15000, 300)] = captions[rng.integers(0, 15000, 300)]
    return Problem(images, captions, np.repeat(np.arange(3000, dtype=np.int32), 5), 100, 20, device="cpu")


@pytest.fixture(scope="module")
def expected(problem, tmp_path_factory):
    return hashes(mined(problem, tmp_path_factory.mktemp("cpu"), "onepass"))


@pytest.mark.parametrize("stay", [(True, True), (True, False), (False, False)])
def test_tables_are_those_of_the_cpu(device, problem, expected, precision, stay, tmp_path, monkeypatch):
    """Vectors stay on the device, or a second stream brings blocks of them."""
    tile = Tile(1024, 2048)
    monkeypatch.setattr(loaded, "plan_room", lambda *_: Room(*stay, tile, tile))
    assert hashes(mined(replace(problem), tmp_path, on_device(device, precision))) == expected


def test_onepass_takes_the_gpu_by_itself(device, problem, expected, tmp_path):
    table = mined(replace(problem, device=device.type), tmp_path, "onepass")
    assert hashes(table) == expected
    units = {path.name.split("-")[1] for path in (tmp_path / "work").glob("limits-*")}
    assert (units == {"device"}) == (device.type == "cuda")


def test_a_full_gpu_has_smaller_tiles(device, problem, expected, tmp_path, monkeypatch):
    """All but 300 MB are taken by somebody else; what is planned with is what the driver says."""
    if device.type != "cuda":
        pytest.skip("a CPU has no memory of its own")
    free = torch.cuda.mem_get_info(device)[0]
    taken = torch.empty(max(0, free - 300 * 2**20), dtype=torch.uint8, device=device)
    rooms = []
    monkeypatch.setattr(loaded, "plan_room", lambda *given: rooms.append(plan_room(*given)) or rooms[-1])
    assert hashes(mined(replace(problem), tmp_path, on_device(device, "float32"))) == expected
    assert rooms[0].tile != rooms[0].largest or not rooms[0].captions
    del taken
