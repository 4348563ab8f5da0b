"""The one pass finds the lists of the definition: on any device, in any arithmetic, whatever the tiles and the room."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.engine import find_device, products_in
from aoq.pipeline.search import exact, pool, scan
from aoq.pipeline.search.arithmetic import BFLOAT16, FLOAT32, FLOAT64, TF32
from aoq.pipeline.search.backends import search_problem
from aoq.pipeline.search.device import arithmetics, choose_tiling
from aoq.pipeline.search.problem import DIRECTIONS, Problem, longest_lists
from aoq.pipeline.tables.audit import audit
from tests.search.problems import KINDS, NAMES, SMALL, check_pinned, check_products, mined, reference_lists, vectors_of
from tests.training.test_precision import STATES, arithmetic

CPU = torch.device("cpu")
ARITHMETICS = {how.name: how for how in (BFLOAT16, TF32, FLOAT32, FLOAT64)}


def use(monkeypatch, *, how=None, tile=None, width=None, pairs=2**18, rows=None):
    """Force an arithmetic, the size of tiles, the room of an anchor, the pairs scored together, the rows of a unit."""
    if how is not None:
        monkeypatch.setattr(scan, "arithmetics", lambda device: [ARITHMETICS[how]])
    if tile is not None:
        room = choose_tiling(CPU, 10**9, 1)._replace(rows=tile[0], columns=tile[1], pairs=pairs)
        monkeypatch.setattr(scan, "choose_tiling", lambda *given: room)
    if width is not None:
        monkeypatch.setattr(pool, "width_for", lambda h, candidates: h + width)
    if rows is not None:
        monkeypatch.setattr(exact, "IMAGE_ROWS", rows)


WAYS = {
    "as it comes": {},
    "bfloat16, small tiles": {"how": "bfloat16", "tile": (7, 11), "rows": 16},
    "tf32, one row": {"how": "tf32", "tile": (1, 40), "width": 5},
    "float32, little room": {"how": "float32", "tile": (64, 64), "width": 4, "pairs": 200},
    "float64, wide": {"how": "float64", "tile": (5, 900), "width": 2, "rows": 9},
}


@pytest.mark.parametrize("way", WAYS)
def test_lists_are_those_that_are_pinned(monkeypatch, way):
    """The ways with tiny tiles take turns, on half of the small problems."""
    use(monkeypatch, **WAYS[way])
    place = list(WAYS).index(way)
    check_pinned(SMALL[place::8] if place else NAMES)


def test_lists_of_faiss_are_those_that_are_pinned():
    check_pinned(NAMES, "faiss-flat")


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from([*KINDS]),
    how=st.sampled_from(sorted(ARITHMETICS)),
    tile=st.sampled_from([(40, 40), (17, 5), (1, 9), (3, 3)]),
    width=st.sampled_from([1, 3, 400]),
    directions=st.sampled_from([(True, True), (True, False), (False, True)]),
)
def test_lists_are_those_of_the_definition(seed, kind, how, tile, width, directions):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 9))
    images, captions = (vectors_of(rng, int(rng.integers(6, 24)), size, kind) for _ in range(2))
    pairs = rng.integers(0, [len(images), len(captions)], (int(rng.integers(0, 5)), 2))
    if seed % 3 == 0:  # one image matches most captions, so that its list is padded
        pairs = np.concatenate([pairs, [(0, caption) for caption in range(len(captions) - seed % 2)]])
    longest = longest_lists(pairs, len(images), len(captions))
    depths = [int(rng.integers(1, longest[direction] + 1)) for direction in DIRECTIONS]
    depths = [h * wanted for h, wanted in zip(depths, directions, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        use(patch, how=how, tile=tile, width=width, rows=int(rng.integers(2, 30)))
        problem = Problem(images, captions, pairs, *depths, memory=10**6)
        found = search_problem(problem, search="onepass").lists
    for direction in problem.directions:
        ids, scores = reference_lists(problem, direction)
        np.testing.assert_array_equal(found[direction].negative_ids, ids)
        assert found[direction].scores.tobytes() == scores.tobytes()


@pytest.mark.parametrize("kind", [*KINDS, "of one sign"])
@pytest.mark.parametrize("size", [1, 1024])
@pytest.mark.parametrize("how", ARITHMETICS.values(), ids=list(ARITHMETICS))
def test_near_products_are_within_their_bound(how, size, kind):
    check_products(how, CPU, 60, size, kind)


@pytest.fixture
def problem():
    """Clusters, one in ten vectors twice, and ties at every rank of some lists."""
    rng = np.random.default_rng(1)
    centres = rng.normal(size=(25, 24))
    images = (centres[rng.integers(0, 25, 700)] + 0.7 * rng.normal(size=(700, 24))).astype(np.float32)
    captions = np.repeat(images, 2, axis=0) + 0.7 * rng.normal(size=(1400, 24)).astype(np.float32)
    for side in (images, captions):
        side[rng.integers(0, len(side), len(side) // 10)] = side[rng.integers(0, len(side), len(side) // 10)]
    captions[1300:] = captions[1300]
    return Problem(images, captions, np.repeat(np.arange(700, dtype=np.int32), 2), 30, 10)


@pytest.fixture
def expected(problem, tmp_path):
    return mined(problem, tmp_path / "faiss", "faiss-flat").sha256


@pytest.mark.parametrize("how", ARITHMETICS)
def test_a_run_goes_on_in_another_arithmetic_and_with_a_lost_unit(problem, expected, tmp_path, monkeypatch, how):
    """Each unit's table says what it left out, whatever it was made with."""

    def stop(done, total):
        if done == total - 1:
            raise KeyboardInterrupt

    use(monkeypatch, how="bfloat16", rows=200)
    with pytest.raises(KeyboardInterrupt):
        mined(problem, tmp_path, "onepass", progress=stop)
    begun = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*.unit")}
    assert {path.stem[:4] for path in begun} == {"i2t-", "kept", "limi"}
    for lost in ("limits-t2i", "kept-000000200-000000400"):
        (tmp_path / "work" / f"{lost}.unit").unlink()
    use(monkeypatch, how=how)
    assert mined(replace(problem), tmp_path, "onepass").sha256 == expected
    assert audit(tmp_path / "table") == []
    assert sum(path.stat().st_mtime_ns != made for path, made in begun.items()) == 3  # the lost ones, and one's lists


@pytest.mark.parametrize("kind", ["a cone", "ten"])
def test_collapsed_vectors_take_little_more_than_others(monkeypatch, kind):
    """Of cosines within 1e-6 and of ten different vectors no search scores all pairs exactly."""
    rng, scored, whole = np.random.default_rng(0), [], scan.scores_on
    some = rng.normal(size=({"ten": 10}.get(kind, 1), 64))
    rows = some[rng.integers(0, len(some), 4200)] + (1e-3 if kind == "a cone" else 0) * rng.normal(size=(4200, 64))
    unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    monkeypatch.setattr(scan, "scores_on", lambda *given: scored.append(len(given[2][0])) or whole(*given))
    search_problem(Problem(unit[:700], unit[700:], np.arange(3500) // 5, 100, 20), search="onepass")
    assert 0 < sum(scored) < 0.5 * 700 * 3500


@pytest.mark.parametrize("state", [*STATES, "inference mode"])
@pytest.mark.parametrize("search", ["onepass", "faiss-flat"])
def test_the_callers_arithmetic_reaches_no_search(state, search):
    with products_in("float32"), torch.inference_mode(state not in STATES):  # which put back what is changed
        STATES.get(state, lambda: None)()
        before = arithmetic()
        check_pinned(SMALL[::60], search)
        assert arithmetic() == before


MULTIPLY = scan.multiply


def replace_tiles(monkeypatch, product):
    """Let `product` compute the tiles; products with a sample stay as they are."""
    monkeypatch.setattr(scan, "multiply", lambda *given, out=None: (MULTIPLY if out is None else product)(*given, out))


def test_memory_that_runs_out_makes_smaller_tiles(problem, monkeypatch, caplog):
    expected, lengths = search_problem(replace(problem), search="onepass").lists, []

    def scarce(one, other, out):
        if len(one) > 300:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        lengths.append(len(one))
        return MULTIPLY(one, other, out)

    replace_tiles(monkeypatch, scarce)
    found = search_problem(replace(problem), search="onepass").lists
    assert max(lengths) == 256
    assert "auto ran out of memory; continuing with tiles of half the size" in caplog.text
    assert found["t2i"].negative_ids.tobytes() == expected["t2i"].negative_ids.tobytes()
    replace_tiles(monkeypatch, lambda one, other, out: scarce(torch.empty(301, 1), other, out))
    with pytest.raises(OSError, match=r"cpu has [\d,]+ MB free, which is too little .*; free some of its memory, or"):
        search_problem(replace(problem), search="onepass")


def test_a_device_that_is_lost_stops_the_search(problem, expected, monkeypatch, tmp_path):
    """A tile of the second block of images fails; what was finished serves the next run."""
    use(monkeypatch, rows=200)

    def fails(*given):
        if list((tmp_path / "work").glob("i2t-*")):
            raise torch.AcceleratorError("CUDA error: unspecified launch failure\nmore of it")
        return MULTIPLY(*given)

    replace_tiles(monkeypatch, fails)
    with pytest.raises(OSError, match=r"failed during the search \(CUDA error: unspecified launch failure\); finished"):
        mined(problem, tmp_path, "onepass")
    assert not (tmp_path / "table").exists()
    replace_tiles(monkeypatch, lambda one, other, out: one @ other)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # a mistake of ours is not the device's
        search_problem(replace(problem), search="onepass")
    replace_tiles(monkeypatch, MULTIPLY)
    assert mined(replace(problem), tmp_path, "onepass").sha256 == expected


@pytest.mark.parametrize("wrong", [np.nan, 30.0])
@pytest.mark.parametrize("how", ARITHMETICS)
def test_products_that_are_wrong_stop_the_search(problem, monkeypatch, wrong, how):
    """One score of the whole pass: not a number, or higher than the arithmetic can explain."""
    use(monkeypatch, how=how, rows=300)
    calls = []

    def faulty(one, other, out):
        MULTIPLY(one, other, out)
        calls.append(1)
        if len(calls) == 1:
            out[5, 7] = out[5].max() + wrong

    replace_tiles(monkeypatch, faulty)
    with pytest.raises(OSError, match="computed products whose errors exceed the bound"):
        search_problem(problem, search="onepass")


@pytest.mark.parametrize(("name", "message"), [("gpu", "use auto, cpu, cuda"), ("cuda:7", "torch sees 0 GPUs")])
def test_a_device_that_is_not_there_is_refused(monkeypatch, name, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        find_device(name)


def test_a_gpus_arithmetic_and_room_follow_from_what_it_says(monkeypatch):
    gpu = torch.device("cuda:0")
    for capability, names in (((8, 0), ["bfloat16", "tf32", "float32", "float64"]), ((7, 5), ["float32", "float64"])):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert [how.name for how in arithmetics(gpu)] == names
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 2 * 2**30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 2**30)
    for free, rows in ((2**40, 8192), (2**26, 4222)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 2**40))
        assert choose_tiling(gpu, 10**9, 1).rows == rows
        assert choose_tiling(gpu, 10**9, 2).rows == rows // 2
    with pytest.raises(OSError, match="too little for any tile"):
        choose_tiling(gpu, 10**9, 128)
    assert find_device("cpu") == CPU
