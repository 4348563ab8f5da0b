"""Every exact backend finds the lists of the definition, in loops; one that only comes near says how near."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search import backends, onepass
from aoq.pipeline.search.backends import BACKENDS, choose_backend
from aoq.pipeline.search.indexes import backend
from aoq.pipeline.search.lists import from_arrow
from aoq.pipeline.search.onepass import ONE_PASS
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.products import choice
from aoq.pipeline.search.products.int8 import int8_works
from aoq.pipeline.search.products.int16 import int16_works
from aoq.pipeline.search.runners import search_problem
from aoq.pipeline.search.small import SMALL
from aoq.pipeline.search.store import Memory
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table

EXACT = [name for name, backend in BACKENDS.items() if backend.is_exact]
PRECISIONS = ["float32", "bfloat16", *["int16"] * int16_works(), *["int8"] * int8_works()]


def mined(problem, folder, search, **options):
    mine(problem, search=search, provenance={"dataset": "d"}, work=folder / "work", output=folder / "table", **options)
    return read_table(folder / "table")


def definition(problem, direction):
    """Every candidate but the anchor's own, by the exact dot product rounded to float32, then by id."""
    side, own = problem[direction], set(map(tuple, problem.positives.tolist()))
    ids, scores = [], []
    for row, anchor in enumerate(side.anchors.tolist()):
        ranked = []
        for number, candidate in enumerate(side.candidates.tolist()):
            exact = sum((Fraction(a) * Fraction(b) for a, b in zip(anchor, candidate, strict=True)), Fraction(0))
            if ((row, number) if direction == "i2t" else (number, row)) not in own:
                ranked.append((-np.float32(float(exact)), number))
        best = sorted(ranked)[: side.h]
        ids.append([number for _, number in best])
        scores.append([-score for score, _ in best])
    return np.array(ids), np.array(scores, dtype=np.float32)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    images=st.integers(6, 14),
    kinds=st.integers(1, 20),
    nudge=st.sampled_from([0.0, 2.0**-22, 1e-3]),
    precision=st.sampled_from(PRECISIONS),
)
@example(seed=11, images=6, kinds=1, nudge=2.0**-22, precision="float32")  # bounds a hair below the last scores
def test_exact_backends_equal_the_definition(tmp_path_factory, seed, images, kinds, nudge, precision):
    """Few distinct vectors stand many times, some a hair apart; one caption in eight belongs to no image."""
    rng = np.random.default_rng(seed)
    distinct = rng.normal(size=(kinds, 5))
    draw = lambda count: (  # noqa: E731
        distinct[rng.integers(0, kinds, count)] * (1 + nudge * rng.integers(-1, 2, (count, 5)))
    ).astype(np.float32)
    image_of = np.where(rng.random(3 * images) < 0.125, -1, rng.integers(0, images, 3 * images)).astype(np.int32)
    most = int(np.bincount(image_of[image_of >= 0], minlength=1).max())
    h_captions = int(rng.integers(1, 3 * images - most + 1))
    problem = Problem(draw(images), draw(3 * images), image_of, h_captions, int(rng.integers(1, images)))
    hashes = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "fastest_precision", lambda: precision)
        patch.setattr(onepass, "TILE_IMAGES", int(rng.integers(4, 16)))
        patch.setattr(onepass, "TILE_CAPTIONS", int(rng.integers(8, 40)))
        for search in [*EXACT, SMALL]:
            table = mined(replace(problem), tmp_path_factory.mktemp("table"), search)
            for direction in DIRECTIONS:
                ids, scores = definition(problem, direction)
                np.testing.assert_array_equal(table[direction].negative_ids, ids)
                np.testing.assert_array_equal(table[direction].scores, scores)
                assert table.manifest["directions"][direction]["certified_share"] == 1
            hashes.add(tuple(table.manifest["directions"][direction]["sha256"] for direction in DIRECTIONS))
    assert len(hashes) == 1


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kinds=st.integers(1, 20),
    pairs=st.integers(0, 25),
    directions=st.sampled_from([("i2t", "t2i"), ("i2t",), ("t2i",)]),
    precision=st.sampled_from(PRECISIONS),
)
def test_in_memory_any_pairs_and_directions_equal_the_definition(seed, kinds, pairs, directions, precision):
    """Several positives on either side, documents that are nobody's, duplicates and ties."""
    rng = np.random.default_rng(seed)
    distinct = rng.normal(size=(kinds, 5)).astype(np.float32)
    images, captions = (distinct[rng.integers(0, kinds, count)] for count in (9, 14))
    positives = np.stack([rng.integers(0, 9, pairs), rng.integers(0, 14, pairs)], axis=1)
    each = [np.bincount(rows, minlength=1).max() for rows in np.unique(positives, axis=0).T]
    depths = [int(rng.integers(1, count - most + 1)) for count, most in zip((14, 9), each, strict=True)]
    h_captions, h_images = (h if d in directions else 0 for d, h in zip(DIRECTIONS, depths, strict=True))
    problem = Problem(images, captions, positives, h_captions, h_images)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "fastest_precision", lambda: precision)
        patch.setattr(onepass, "TILE_IMAGES", int(rng.integers(4, 16)))
        patch.setattr(onepass, "TILE_CAPTIONS", int(rng.integers(8, 40)))
        for search in [*EXACT, SMALL]:
            found = search_problem(problem, search=search)
            assert tuple(found.lists) == directions
            for direction in directions:
                ids, scores = definition(problem, direction)
                np.testing.assert_array_equal(found.lists[direction].negative_ids, ids)
                np.testing.assert_array_equal(found.lists[direction].scores, scores)
                assert found.guarantees[direction] == {"guarantee": "exact"}


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("search", [*EXACT, SMALL])
@pytest.mark.parametrize(("least", "most"), [(-30, 11.5), (-11.5, -11), (11, 11.5), (-3, 3)])
def test_norms_of_any_size_side_by_side_equal_the_definition(monkeypatch, precision, search, least, most):
    monkeypatch.setattr(choice, "fastest_precision", lambda: precision)
    rng = np.random.default_rng(0)
    images, captions = (
        (rng.normal(size=(count, 4)) * 10 ** rng.uniform(least, most, (count, 1))).astype(np.float32)
        for count in (12, 20)
    )
    problem = Problem(images, captions, rng.integers(0, 12, 20), 4, 4)
    found = search_problem(problem, search=search)
    for direction in DIRECTIONS:
        ids, scores = definition(problem, direction)
        np.testing.assert_array_equal(found.lists[direction].negative_ids, ids)
        np.testing.assert_array_equal(found.lists[direction].scores, scores)


@pytest.fixture
def problem():
    rng = np.random.default_rng(1)
    images = rng.normal(size=(400, 12)).astype(np.float32)
    captions = np.repeat(images, 2, axis=0) + rng.normal(size=(800, 12)).astype(np.float32)
    return Problem(images, captions, np.repeat(np.arange(400, dtype=np.int32), 2), 20, 10)


@pytest.mark.parametrize("search", [*EXACT, "faiss:IVF16,Flat|nprobe=4"])
def test_in_memory_the_lists_are_those_of_the_table(problem, tmp_path, monkeypatch, search):
    monkeypatch.setattr(onepass, "TILE_IMAGES", 150)
    monkeypatch.setattr(backend, "BLOCK", 150)
    found = search_problem(problem, search=search, recall_floor=0.1)
    table = mined(problem, tmp_path, search, recall_floor=0.1)
    assert found.search == search
    for direction in DIRECTIONS:
        for column in ("negative_ids", "scores", "positive_score"):
            ours, theirs = getattr(found.lists[direction], column), getattr(table[direction], column)
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes()
        assert found.guarantees[direction].items() <= table.manifest["directions"][direction].items()
    if search not in EXACT:
        with pytest.raises(ValueError, match=r"mining.recall_floor is 100.0%"):
            search_problem(problem, search=search, recall_floor=1.0)


def test_recall_is_that_of_the_definition(problem, tmp_path):
    """512 anchors are sampled: all 400 images, and of 800 captions too few to be sure, so only images are compared."""
    near = mined(problem, tmp_path / "near", "faiss:IVF16,Flat|nprobe=4", recall_floor=0.1)
    exact = mined(problem, tmp_path / "exact", "onepass")
    about = near.manifest["directions"]["i2t"]
    found = [len(set(a) & set(b)) / 20 for a, b in zip(near.i2t.negative_ids, exact.i2t.negative_ids, strict=True)]
    assert about["recall"] == pytest.approx(np.mean(found), abs=1e-6)
    assert 0.5 < about["recall"] < 1
    assert (about["search"], about["guarantee"], about["recall_anchors"]) == (
        "faiss:IVF16,Flat|nprobe=4",
        "approximate",
        400,
    )
    assert about["certified_share"] == 0


def test_an_index_that_looks_everywhere_finds_everything(problem, tmp_path):
    near = mined(problem, tmp_path / "near", "faiss:IVF16,Flat|nprobe=16")
    exact = mined(problem, tmp_path / "exact", "onepass")
    for direction in DIRECTIONS:
        about = near.manifest["directions"][direction]
        assert about["recall"] == 1
        assert about["sha256"] == exact.manifest["directions"][direction]["sha256"]


def test_rows_that_an_index_cannot_fill_are_short(problem, tmp_path):
    """One of 64 clusters holds fewer images than are asked for."""
    near = mined(problem, tmp_path, "faiss:IVF64,Flat|nprobe=1", recall_floor=0.01)
    short = near.t2i.negative_ids < 0
    assert short.any()
    assert np.isnan(near.t2i.scores[short]).all()
    assert not (np.diff(short.astype(int), axis=1) < 0).any()  # padding stands at the end


def test_an_index_that_misses_too_much_is_refused(problem, tmp_path):
    with pytest.raises(ValueError, match=r"finds \d+\.\d% of the i2t lists, and mining.recall_floor is 95.0%"):
        mined(problem, tmp_path, "faiss:IVF64,Flat|nprobe=1")
    assert not (tmp_path / "table").exists()


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ("faiss:Nonsense", r"FAISS makes no index of 'Nonsense' in 12 dimensions .*IVF256,Flat\|nprobe=32"),
        ("faiss:IVF16,Flat|probes=4", r"FAISS makes no index of 'IVF16,Flat\|probes=4'"),
        ("faiss:IVF4096,Flat", r"cannot train 'IVF4096,Flat' on 800 vectors .*; ask for fewer clusters"),
        ("exact", "no search 'exact'; known are auto, onepass, faiss-flat, .*and faiss:FACTORY"),
    ],
)
def test_a_search_that_cannot_be_is_refused(problem, tmp_path, search, message):
    with pytest.raises(ValueError, match=message):
        mined(problem, tmp_path, search)


@pytest.mark.parametrize("lost", ["limits-i2t", "limits-t2i", "pairs-000000150-000000300"])
def test_a_run_goes_on_in_another_precision(problem, tmp_path, monkeypatch, lost):
    """A run that is cut short on a machine with bfloat16 units and goes on on one without, and a unit that is lost."""

    def stop(done, total):
        if done == total - 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(onepass, "SMALL", 0)
    monkeypatch.setattr(onepass, "TILE_IMAGES", 150)
    monkeypatch.setattr(choice, "fastest_precision", lambda: "bfloat16")
    with pytest.raises(KeyboardInterrupt):
        mined(problem, tmp_path, "onepass", progress=stop)
    begun = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("*.unit")}
    (tmp_path / "work" / f"{lost}.unit").unlink()
    monkeypatch.setattr(choice, "fastest_precision", lambda: "float32")
    found = mined(problem, tmp_path, "onepass")
    again = {path for path, made in begun.items() if path.stat().st_mtime_ns != made}
    assert {path.stem for path in again} <= {lost, "i2t-000000150-000000300"}
    assert audit(tmp_path / "table") == []
    whole = mined(problem, tmp_path / "whole", "faiss-flat")
    for direction in DIRECTIONS:
        assert found.manifest["directions"][direction]["sha256"] == whole.manifest["directions"][direction]["sha256"]


def test_blocks_that_were_made_with_different_limits_are_merged(problem, monkeypatch):
    """A lost limit that another machine makes again may be higher or lower: each block says which it was made with."""
    monkeypatch.setattr(onepass, "TILE_IMAGES", 150)
    expected, store = search_problem(problem, search="faiss-flat").lists["t2i"], Memory()
    limits, scans, merges = ONE_PASS.plan(problem)
    for unit in limits:
        unit.do(problem, store)
    made = store.read("limits-t2i")["limit"].to_numpy()
    for number, unit in enumerate(scans):
        store.write("limits-t2i", pa.table({"limit": made + np.float32(number - 1)}))
        unit.do(problem, store)
    for unit in merges:
        unit.do(problem, store)
    found = from_arrow(pa.concat_tables([store.read(name) for unit in merges for name in unit.outputs]))
    np.testing.assert_array_equal(found.negative_ids, expected.negative_ids)
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_a_small_job_passes_through_no_files(problem, tmp_path, monkeypatch):
    small = mined(problem, tmp_path / "small", "onepass")
    assert [*(tmp_path / "small" / "work").iterdir()] == []
    assert not ONE_PASS.is_small(replace(problem, memory=10**5))
    monkeypatch.setattr(onepass, "SMALL", 400 * 800 * 12 - 1)
    large = mined(problem, tmp_path / "large", "onepass")
    assert {path.stem[:4] for path in (tmp_path / "large" / "work").iterdir()} == {"i2t-", "t2i-", "pair", "limi"}
    for direction in DIRECTIONS:
        assert small.manifest["directions"][direction]["sha256"] == large.manifest["directions"][direction]["sha256"]


def test_auto_says_what_it_takes_and_why(monkeypatch, caplog):
    caplog.set_level("INFO")
    for count, name in ((0, "onepass"), (2, "faiss-flat")):
        monkeypatch.setattr(backends, "gpus", lambda count=count: count)
        assert choose_backend("auto") is BACKENDS[name]
    assert caplog.messages[0].startswith("searching with onepass: ")
    assert caplog.messages[1] == "searching with faiss-flat: FAISS sees 2 GPUs"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"captions": np.ones((800, 13), np.float32)}, "images have 12 dimensions and captions 13"),
        ({"images": np.ones((0, 12), np.float32)}, "there are no images"),
        ({"positives": np.zeros(7, np.int32)}, "7 captions are paired with images, and 800 are there"),
        (
            {"positives": np.full(800, 400, np.int32)},
            "caption 0 is paired with image 400, and there are images 0 to 399",
        ),
        ({"captions": np.ones((0, 12), np.float32)}, "there are no captions"),
        ({"h_images": 400}, "lower h_images to at most 399"),
        ({"positives": np.array([[0, 0], [400, 1]])}, "pair 1 names image 400, and there are images 0 to 399"),
        ({"positives": np.array([[0, -1]])}, "pair 0 names caption -1, and there are captions 0 to 799"),
        ({"positives": np.zeros((3, 3), np.int32)}, r"positives have shape \(3, 3\); give \(n, 2\) rows"),
        ({"h_images": 0, "h_captions": 0}, "one must be at least 1, the other may be 0"),
        ({"h_images": -1}, "h_images -1; one must be at least 1"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(problem, change, message):
    with pytest.raises(ValueError, match=message):
        replace(problem, **change)


def test_vectors_that_are_not_finite_are_named(problem, tmp_path):
    for value in (np.nan, np.inf):
        captions = problem.captions.copy()
        captions[7, 3] = value
        for search in [*EXACT, SMALL]:
            with pytest.raises(ValueError, match="row 7 of the captions is not finite"):
                mined(replace(problem, captions=captions), tmp_path, search)
