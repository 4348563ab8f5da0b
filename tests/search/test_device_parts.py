"""Parts of the search on a device beside their definitions, and what is asked of devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.mining.estimate import estimate
from aoq.pipeline.search import backends
from aoq.pipeline.search.backends import BACKENDS, choose_backend
from aoq.pipeline.search.device import choice, loaded
from aoq.pipeline.search.device.arithmetic import error_bound, products_of, rounded
from aoq.pipeline.search.device.choice import choose_precision, find_device, rescored
from aoq.pipeline.search.device.loaded import Where
from aoq.pipeline.search.device.room import Tile, plan_room, tile_bytes
from aoq.pipeline.search.device.scan import GROUP, Keeper, multiply, reaching, scan_tile
from aoq.pipeline.search.device.vectors import Vectors, bytes_on_device
from aoq.pipeline.search.onepass import ONE_PASS
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.runners import run_in_process, run_search
from aoq.pipeline.search.store import Folder, Memory

CPU = torch.device("cpu")
PRECISIONS = ("bfloat16", "tf32", "float32")
GPU = torch.device("cuda", 0)


def vectors(seed, size, scale, count=40):
    """Vectors of many sizes, with zeros, denormals, an all-zero vector and one midway between two bfloat16s."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(count, size)) * np.exp(3 * rng.normal(size=(count, 1))) * (rng.random((count, size)) < 0.8)
    found[3] = 0
    found[4:6] *= 1e-38 / scale
    found[6] = 1.00391
    return (scale * found).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 7, 300]),
    scale=st.sampled_from([1e-10, 1e-3, 1.0, 1e8]),
    precision=st.sampled_from(PRECISIONS),
)
def test_near_products_are_within_the_error(seed, size, scale, precision):
    sides = vectors(seed, size, scale), vectors(seed + 1, size, scale)
    one, other = (Vectors.load(given, precision, CPU, resident=True) for given in sides)
    error = error_bound(one.largest, other.largest, size, precision)
    with products_of(precision):
        near = multiply(*(next(side.rounded([(0, 40)])) for side in (one, other))).double()
    exact = torch.from_numpy(sides[0]).double() @ torch.from_numpy(sides[1]).double().T
    assert (near - exact).abs().max() <= error
    assert error <= {"bfloat16": 0.02, "tf32": 3e-3, "float32": 2e-4}[precision] * one.largest[0] * other.largest[0]
    for side, vector in zip((one, other), sides, strict=True):
        np.testing.assert_allclose(side.norms.numpy(), np.linalg.norm(vector.astype(np.float64), axis=1), rtol=1e-12)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_streamed_vectors_are_the_resident_ones(precision):
    rows = vectors(0, 12, 1.0, count=50)
    rows.setflags(write=False)
    one, other = (Vectors.load(rows, precision, CPU, resident=resident) for resident in (True, False))
    ranges, some = [(0, 20), (20, 41), (41, 50)], torch.tensor([3, 49, 3])
    assert one.largest == other.largest
    assert (one.norms == other.norms).all()
    assert (one.rows(some) == other.rows(some)).all()
    for first, second in zip(one.rounded(ranges), other.rounded(ranges), strict=True):
        assert (first == second).all()
    held = sum(part.nbytes for part in {id(part): part for part in (one.resident, one.near)}.values())
    assert held == bytes_on_device(50, 12, precision)


def test_tf32_has_ten_bits():
    values = torch.tensor([[1 + 2**-10, 1 + 2**-11 + 2**-23, -(1 + 2**-12), 3e-39, 0.0]])
    found = rounded(values, "tf32")
    assert found[0, :3].tolist() == [1 + 2**-10, 1 + 2**-10, -1.0]
    assert ((found.view(torch.int32) & 0x1FFF) == 0).all()
    assert ((found - values).abs() <= 2.0**-11 * values.abs() + 2.0**-126).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000), rows=st.integers(1, 40), columns=st.integers(1, 30), share=st.sampled_from([0, 1, 9])
)
def test_what_reaches_a_limit_is_found(seed, rows, columns, share):
    """Work is cut into portions of any size, and some scores are not numbers."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(-9, 10, (rows, columns)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.02] = np.nan
    image_limits = rng.integers(share, 12, -(-rows // GROUP) * GROUP).astype(np.float32)
    image_limits[rows:] = np.inf
    caption_limits = rng.integers(share, 12, columns).astype(np.float32)
    found = list(reaching(*map(torch.from_numpy, (scores, image_limits, caption_limits))))
    pairs = [
        (row, column)
        for row in range(rows)
        for column in range(columns)
        if not (scores[row, column] < image_limits[row] and scores[row, column] < caption_limits[column])
    ]
    got = [(int(row), int(column)) for part in found for row, column in zip(*part[:2], strict=True)]
    assert sorted(got) == pairs
    for part in found:
        np.testing.assert_array_equal(part[2], scores[part[0], part[1]])


def test_a_tile_hands_each_side_what_reaches_its_limit_until_it_is_too_much():
    rng = np.random.default_rng(0)
    images, captions = (torch.from_numpy(rng.normal(size=(count, 6)).astype(np.float32)) for count in (20, 50))
    scores = (images @ captions.T).numpy()
    limits = rng.normal(size=20).astype(np.float32), rng.normal(size=60).astype(np.float32)
    limits[0][3], limits[1][17] = -100, -100
    padded = torch.nn.functional.pad(torch.from_numpy(limits[0]), (0, 12), value=np.inf)
    keepers = Keeper(padded, 49), Keeper(torch.from_numpy(limits[1]), 19)
    scan_tile(images, captions, 1000, 10, keepers)
    for keeper, columns, given_limits, offset in (
        (keepers[0], scores, limits[0], 10),
        (keepers[1], scores.T, limits[1][10:], 1000),
    ):
        anchors, candidates, near = keeper.handed_over()
        got = set(zip(anchors.tolist(), candidates.tolist(), near.tolist(), strict=True))
        first = 10 if offset == 1000 else 0
        assert got == {
            (row + first, column + offset, float(columns[row, column]))
            for row in range(len(columns))
            for column in range(columns.shape[1])
            if columns[row, column] >= given_limits[row]
        }
        assert len(keeper.handed_over()[0]) == 0
    assert keepers[0].limits[3] == np.inf  # kept 50, and 49 is the most
    assert keepers[1].limits[17] == np.inf
    assert (keepers[0].limits[:20].isinf()).sum() == 1


def shape(images, captions, dimensions=1024, depths=(300, 60), one_set=False):
    one, other = (np.broadcast_to(np.float32(0), (count, dimensions)) for count in (images, captions))
    if one_set:
        return Problem(one, one, np.empty((0, 2), np.int32), depths[0], 0, one_set=True)
    return Problem(one, other, np.empty((0, 2), np.int32), *depths)


def test_room_is_shared_out():
    coco = shape(113_287, 566_435)
    everything = plan_room(coco, "bfloat16", 130 * 10**9)
    assert everything == (True, True, Tile(16384, 16384), Tile(16384, 16384))
    for precision in PRECISIONS:
        for free in (24 * 10**9, 8 * 10**9, 2 * 10**9, 10**9):
            room = plan_room(coco, precision, free)
            stay = sum(
                bytes_on_device(count, 1024, precision) * stays
                for count, stays in ((113_287, room.images), (566_435, room.captions))
            )
            assert stay + tile_bytes(coco, room.tile) <= free
    assert not plan_room(coco, "bfloat16", 4 * 10**9).captions
    assert plan_room(coco, "bfloat16", 10**7) is None
    one = plan_room(shape(400_000, 0, one_set=True), "float32", 4 * 10**9)
    assert (one.images, one.captions) == (True, True)


def test_devices_are_found_or_refused_in_a_sentence(monkeypatch):
    assert find_device("cpu") == CPU
    assert find_device("auto") == CPU
    with pytest.raises(
        ValueError, match=r"^\[engine\] device is cuda, and torch sees 0 GPUs; use another, cpu or auto"
    ):
        find_device("cuda")
    with pytest.raises(ValueError, match=r"device is 'gpu'; use auto, cpu, cuda"):
        find_device("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert find_device("auto") == find_device("cuda") == torch.device("cuda", 1)
    assert find_device("cuda:0") == GPU
    with pytest.raises(ValueError, match="device is cuda:2, and torch sees 2 GPUs"):
        find_device("cuda:2")


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    images, captions = (rng.normal(size=(count, 16)).astype(np.float32) for count in (60, 300))
    return Problem(images, captions, np.repeat(np.arange(60, dtype=np.int32), 5), 20, 4, device="cpu")


def names(steps):
    return {name for step in steps for unit in step for name in unit.outputs}


def test_onepass_takes_the_problems_device(problem, monkeypatch):
    """`auto` takes onepass there; a process that gives its units to others plans for CPUs."""
    assert names(BACKENDS["onepass"].plan(problem)) == names(ONE_PASS.plan(problem))
    monkeypatch.setattr(backends, "find_device", lambda name: CPU if name == "cpu" else GPU)
    monkeypatch.setattr(backends, "gpus", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    on_gpu = Problem(problem.images, problem.captions, problem.positives, 20, 4)
    assert "limits-device-bfloat16-i2t" in names(BACKENDS["onepass"].plan(on_gpu))
    assert names(BACKENDS["onepass"].plan(problem)) == names(ONE_PASS.plan(problem))
    assert choose_backend("auto") is BACKENDS["onepass"]
    assert choose_backend("auto", "cpu") is BACKENDS["onepass"]
    assert BACKENDS["onepass"].costs(on_gpu).keys() == BACKENDS["onepass"].costs(problem).keys()


def test_what_others_run_is_planned_for_cpus(problem, monkeypatch):
    monkeypatch.setattr(backends, "find_device", lambda name: CPU if name == "cpu" else GPU)
    planned = []

    def elsewhere(steps, *others):
        planned.append(names(steps))
        run_in_process(steps, *others)

    run_search(Problem(problem.images, problem.captions, problem.positives, 20, 4), "onepass", Memory(), run=elsewhere)
    assert planned == [names(ONE_PASS.plan(problem))]


def test_an_estimate_is_for_the_device(problem):
    backend = choice.on_device(CPU, "float32")
    assert len(backend.costs(problem)) == len(backend.plan(problem)) == 3
    assert backend.work_bytes(problem) > 0
    assert estimate(problem, "auto").search == "onepass"


def test_vectors_are_moved_once_for_a_problem_and_a_store(problem, tmp_path):
    where, other = Where("cpu", "bfloat16"), replace(problem, images=problem.images + 1)
    store = Folder(tmp_path)
    first, again, changed = (
        loaded.on_device(lambda found: found, where, one, store) for one in (problem, problem, other)
    )
    assert first is again
    assert first.images.given is problem.images
    assert changed.images.given is other.images


def test_the_arithmetic_is_as_coarse_as_the_scores_allow(monkeypatch):
    """Scores a hair apart cannot be told apart by a coarse one; an old GPU has one arithmetic."""
    rng = np.random.default_rng(0)
    base = np.ones(64) / 8
    spread = {
        "bfloat16": rng.normal(size=(400, 64)) / 8,
        "tf32": base + 0.003 * rng.normal(size=(400, 64)),
        "float32": base + 1e-5 * rng.normal(size=(400, 64)),
    }
    for precision, rows in spread.items():
        side = rows.astype(np.float32)
        given_problem = Problem(side, side, np.arange(400), 20, 20)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
        assert choose_precision(given_problem, GPU) == precision
        assert rescored(given_problem, "bfloat16") >= rescored(given_problem, "tf32") >= 1
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
        assert choose_precision(given_problem, GPU) == "float32"
        assert choose_precision(given_problem, CPU) == "float32"
