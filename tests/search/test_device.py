"""The one pass on a device finds the lists of the definition; here the device is a CPU, and the code the same."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.search import exact
from aoq.pipeline.search.device import loaded, onepass, room, scan
from aoq.pipeline.search.device.choice import on_device
from aoq.pipeline.search.device.room import Room, Tile
from aoq.pipeline.search.onepass import ONE_PASS
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.runners import search_problem
from aoq.pipeline.search.units import never
from aoq.pipeline.tables.audit import audit
from tests.search.test_backends import definition, mined

PRECISIONS = ("bfloat16", "tf32", "float32")
CPU = torch.device("cpu")
BYTES = 3 * 2**20


def adversarial(seed, count, kind, size=5):
    """Vectors of one kind, each of which stands several times."""
    rng = np.random.default_rng(seed)
    distinct = rng.normal(size=(max(1, count // 3), size))
    if kind == "a hair apart":
        distinct = distinct[:1] * (1 + 2.0**-22 * rng.integers(-1, 2, distinct.shape))
    elif kind == "all zero":
        distinct *= 0
    elif kind == "zeros among them":
        distinct[::2] = 0
    elif kind == "denormal":
        distinct = np.where(rng.random(distinct.shape) < 0.5, 1e-40, 1e-5) * distinct
    elif kind == "huge":
        distinct *= 10 ** rng.uniform(11, 11.5, (len(distinct), 1)) / np.sqrt(size)
    elif kind == "of all sizes":
        distinct *= 10 ** rng.uniform(-30, 11.5, (len(distinct), 1)) / np.sqrt(size)
    found = distinct[rng.integers(0, len(distinct), count)].astype(np.float32)
    if kind in ("denormal", "of all sizes"):  # a side of nothing but tiny vectors is refused
        found[0] = rng.normal(size=size)
    return found


KINDS = ("normal", "a hair apart", "all zero", "zeros among them", "denormal", "huge", "of all sizes")


def drawn_problem(seed, kind):
    rng = np.random.default_rng(seed)
    images, captions = (adversarial(seed, int(rng.integers(6, 40)), kind) for _ in range(2))
    pairs = rng.integers(0, [len(images), len(captions)], (int(rng.integers(0, 30)), 2))
    most = [np.bincount(rows, minlength=1).max() for rows in np.unique(pairs, axis=0).T]
    depths = [
        int(rng.integers(1, count - own + 1))
        for count, own in ((len(captions), most[0]), (len(images), most[1]))
        if count > own
    ]
    return Problem(images, captions, pairs, *depths) if len(depths) == 2 else Problem(images, captions, pairs[:0], 3, 3)


def assert_is_the_definition(problem, search):
    found = search_problem(problem, search=search)
    assert tuple(found.lists) == problem.directions
    for direction in problem.directions:
        ids, scores = definition(problem, direction)
        np.testing.assert_array_equal(found.lists[direction].negative_ids, ids)
        np.testing.assert_array_equal(found.lists[direction].scores, scores)
        assert (found.lists[direction].scores[:, -1] > found.lists[direction].bound).all()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(KINDS),
    precision=st.sampled_from(PRECISIONS),
    resident=st.sampled_from([(True, True), (True, False), (False, True), (False, False)]),
    tile=st.sampled_from([Tile(40, 40), Tile(17, 5), Tile(3, 40), Tile(1, 1)]),
    directions=st.sampled_from([(True, True), (True, False), (False, True)]),
    unit=st.sampled_from([7, 16384]),
    free=st.sampled_from([300, 10**9]),
)
def test_adversarial_vectors_equal_the_definition(seed, kind, precision, resident, tile, directions, unit, free):
    problem = drawn_problem(seed, kind)
    problem = replace(problem, h_captions=problem.h_captions * directions[0], h_images=problem.h_images * directions[1])
    problem = replace(problem, memory=200_000)  # captions are merged in blocks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loaded, "plan_room", lambda *_: Room(*resident, tile, tile))
        patch.setattr(loaded, "free_bytes", lambda *_: free)
        patch.setattr(onepass, "IMAGES", unit)
        assert_is_the_definition(problem, on_device(CPU, precision))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_set_equals_the_definition(precision, kind):
    vectors = adversarial(3, 30, kind)
    problem = Problem(vectors, vectors, np.array([[0, 1], [5, 9], [9, 5]]), 7, 0, one_set=True)
    found = search_problem(problem, search=on_device(CPU, precision)).lists["i2t"]
    theirs = search_problem(replace(problem), search="faiss-flat").lists["i2t"]
    np.testing.assert_array_equal(found.negative_ids, theirs.negative_ids)
    np.testing.assert_array_equal(found.scores, theirs.scores)


@pytest.fixture
def problem():
    """Clusters, one in ten vectors twice, and an image with ties at every rank of its list."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(25, 24))
    images = (centres[rng.integers(0, 25, 700)] + 0.7 * rng.normal(size=(700, 24))).astype(np.float32)
    captions = np.repeat(images, 2, axis=0) + 0.7 * rng.normal(size=(1400, 24)).astype(np.float32)
    for side in (images, captions):
        side[rng.integers(0, len(side), len(side) // 10)] = side[rng.integers(0, len(side), len(side) // 10)]
    captions[1300:] = captions[1300]
    return Problem(images, captions, np.repeat(np.arange(700, dtype=np.int32), 2), 30, 10)


def hashes(table):
    return [table.manifest["directions"][direction]["sha256"] for direction in DIRECTIONS]


def test_tables_are_those_of_the_cpu(problem, tmp_path, monkeypatch):
    """Whatever the arithmetic, the memory and so the tiles; with and without files between the steps."""
    expected = hashes(mined(problem, tmp_path / "cpu", "onepass"))
    assert hashes(mined(replace(problem), tmp_path / "faiss", "faiss-flat")) == expected
    monkeypatch.setattr(room, "FEWEST", 64)
    for number, (precision, memory, unit) in enumerate(
        [("bfloat16", 10**9, 16384), ("tf32", BYTES, 300), ("float32", BYTES, 16384), ("bfloat16", BYTES // 2, 300)]
    ):
        monkeypatch.setattr(onepass, "IMAGES", unit)
        asked = replace(problem, memory=memory)
        table = mined(asked, tmp_path / str(number), on_device(CPU, precision))
        assert hashes(table) == expected
        assert all(about["certified_share"] == 1 for about in table.manifest["directions"].values())
        assert audit(tmp_path / str(number) / "table") == []
        assert table.manifest["directions"]["i2t"]["search"] == "onepass"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_few_anchors_are_searched_again(precision, monkeypatch):
    """The pass itself proves the lists; the search that stands in for it does not."""
    again, whole = [], exact.exact_heads
    monkeypatch.setattr(exact, "exact_heads", lambda side: again.append(len(side.anchors)) or whole(side))
    rng = np.random.default_rng(0)
    images, captions = (rng.normal(size=(n, 32)).astype(np.float32) for n in (500, 3000))
    problem = Problem(images, captions, np.repeat(np.arange(500, dtype=np.int32), 6), 50, 10)
    search_problem(problem, search=on_device(CPU, precision))
    assert sum(again) <= 10


def test_a_run_cut_short_goes_on(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(onepass, "IMAGES", 200)
    search, seen = on_device(CPU, "bfloat16"), []

    def stop(done, total):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mined(problem, tmp_path, search, progress=stop)
    begun = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}
    assert {name.split("-")[0] for name in begun} == {"limits", "i2t", "kept"}
    table = mined(replace(problem), tmp_path, search, progress=lambda *done: seen.append(done))
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "work").iterdir()}
    assert begun.items() <= after.items()
    assert hashes(table) == hashes(mined(problem, tmp_path / "cpu", "onepass"))


def test_units_of_the_cpu_are_not_taken_for_the_devices(problem, tmp_path):
    """Their near scores and limits have other errors; finished lists are the same and may be kept."""
    names = [
        {name for step in backend.plan(problem) for unit in step for name in unit.outputs if name[1:4] != "2t-"}
        for backend in (on_device(CPU, "bfloat16"), on_device(CPU, "float32"))
    ]
    mined(problem, tmp_path, replace(ONE_PASS, is_small=never))
    names.append({path.stem for path in (tmp_path / "work").iterdir()})
    near = [{name for name in some if name.startswith(("limits", "kept", "pairs"))} for some in names]
    assert all(near)
    assert not near[0] & near[1]
    assert not (near[0] | near[1]) & near[2]


def test_too_little_memory_makes_smaller_tiles_and_says_so(problem, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(room, "FEWEST", 16)
    shapes, multiply = set(), scan.multiply
    monkeypatch.setattr(scan, "multiply", lambda one, other: shapes.add((len(one), len(other))) or multiply(one, other))
    expected = search_problem(problem, search="onepass").lists
    for free in (10**9, 3 * 10**6, 10**6):
        shapes.clear()
        caplog.clear()
        monkeypatch.setattr(loaded, "free_bytes", lambda *_, free=free: free)
        found = search_problem(replace(problem), search=on_device(CPU, "float32")).lists
        for direction in DIRECTIONS:
            assert found[direction].scores.tobytes() == expected[direction].scores.tobytes()
            assert found[direction].negative_ids.tobytes() == expected[direction].negative_ids.tobytes()
        largest = max(images * captions for images, captions in shapes)
        assert largest * room.ENTRY_BYTES <= free
        said = [message for message in caplog.messages if "GB free: tiles of" in message]
        assert len(said) == (0 if free == 10**9 else 1), said
    assert "instead of 700 x 1400" in said[0]
    assert largest < 700 * 1400 // 10


def test_memory_that_runs_out_halves_what_is_used(problem, monkeypatch, caplog):
    calls, multiply = [], scan.multiply

    def scarce(one, other):
        calls.append(len(one) * len(other))
        if calls[-1] > 300_000:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return multiply(one, other)

    monkeypatch.setattr(scan, "multiply", scarce)
    monkeypatch.setattr(loaded, "free_bytes", lambda *_: 24 * 10**6)
    found = search_problem(problem, search=on_device(CPU, "float32")).lists
    assert max(calls) > 300_000 > calls[-1]
    assert "cpu ran out of memory; going on with half of it" in caplog.text
    expected = search_problem(replace(problem), search="onepass").lists
    assert found["t2i"].negative_ids.tobytes() == expected["t2i"].negative_ids.tobytes()


def test_memory_for_no_tile_is_refused(problem, monkeypatch, tmp_path):
    monkeypatch.setattr(loaded, "free_bytes", lambda *_: 10**5)
    with pytest.raises(OSError, match=r"cpu has 0 MB free, which is too little .*; free some of its memory, or"):
        mined(problem, tmp_path, on_device(CPU, "float32"))
    assert not (tmp_path / "table").exists()


def test_a_device_that_is_lost_stops_the_search(problem, monkeypatch, tmp_path):
    """The third tile of the second block of images fails; what was finished serves the next run."""
    monkeypatch.setattr(onepass, "IMAGES", 200)
    calls, multiply = [], scan.multiply

    def fails(one, other):
        calls.append(1)
        if len(calls) == 3:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure\nmore of it")
        return multiply(one, other)

    monkeypatch.setattr(scan, "multiply", fails)
    search = on_device(CPU, "float32")
    with pytest.raises(
        OSError, match=r"^cpu failed during the search \(CUDA error: unspecified launch failure\); finished"
    ):
        mined(problem, tmp_path, search)
    assert not (tmp_path / "table").exists()
    assert len(list((tmp_path / "work").glob("i2t-*"))) == 2
    table = mined(replace(problem), tmp_path, search)
    assert hashes(table) == hashes(mined(problem, tmp_path / "cpu", "onepass"))


def test_a_mistake_of_ours_is_not_blamed_on_the_device(problem, monkeypatch):
    monkeypatch.setattr(scan, "multiply", lambda one, other: one @ other)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        search_problem(problem, search=on_device(CPU, "float32"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_are_named(problem, value):
    captions = problem.captions.copy()
    captions[7, 3] = value
    with pytest.raises(ValueError, match="row 7 of the captions is not finite"):
        search_problem(replace(problem, captions=captions), search=on_device(CPU, "bfloat16"))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3.0])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_products_that_are_wrong_stop_the_search(problem, monkeypatch, tmp_path, wrong, precision):
    """One score of the whole pass: not a number, infinite, or higher than the arithmetic can explain."""
    calls, multiply = [], scan.multiply

    def faulty(one, other):
        scores = multiply(one, other)
        calls.append(1)
        if len(calls) == 2:
            scores[5, 7] = scores[5].max() + wrong
        return scores

    monkeypatch.setattr(onepass, "IMAGES", 300)
    monkeypatch.setattr(scan, "multiply", faulty)
    with pytest.raises(OSError, match="computed products that are further from the exact ones"):
        mined(problem, tmp_path, on_device(CPU, precision))
    assert not (tmp_path / "table").exists()


def test_the_processs_own_arithmetic_changes_nothing_and_is_put_back(problem):
    expected = search_problem(problem, search="faiss-flat").lists
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = search_problem(replace(problem), search=on_device(CPU, "float32")).lists
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert found["i2t"].negative_ids.tobytes() == expected["i2t"].negative_ids.tobytes()
