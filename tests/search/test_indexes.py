"""Searches by an index: scores are exact, recall is that of the definition, and an index is built once."""

from __future__ import annotations

import gc
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.backends import choose_backend
from aoq.pipeline.search.indexes import backend, building
from aoq.pipeline.search.indexes.building import build_index, memory_needed
from aoq.pipeline.search.indexes.recall import NORMAL_QUANTILE, sampled_rows, wilson_interval
from aoq.pipeline.search.indexes.recipe import Recipe, hnsw, ivf
from aoq.pipeline.search.indexes.tuning import DEVIATIONS, STEP, choose_breadth, standard_error
from aoq.pipeline.search.problem import DIRECTIONS, Problem, blocks
from aoq.pipeline.search.runners import run_search, search_problem
from aoq.pipeline.search.store import Memory
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table

faiss = pytest.importorskip("faiss")
SEARCHES = ["ivf", "hnsw"]
DEEP = "faiss:IVF16,SQ8|nprobe=3"


@pytest.fixture
def problem():
    rng = np.random.default_rng(1)
    images = rng.normal(size=(600, 12)).astype(np.float32)
    captions = np.repeat(images, 2, axis=0) + rng.normal(size=(1200, 12)).astype(np.float32)
    return Problem(images, captions, np.repeat(np.arange(600, dtype=np.int32), 2), 20, 10)


def mined(problem, folder, search, **options):
    options = {"indexes": folder.parent / "kept", **options}
    mine(problem, search=search, provenance={"dataset": "d"}, work=folder / "work", output=folder / "table", **options)
    return read_table(folder / "table")


def files_of(folder: Path):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.faiss")
    }


@pytest.mark.parametrize("search", [*SEARCHES, DEEP])
def test_scores_are_exact_and_no_own_positive_is_listed(problem, tmp_path, search):
    table = mined(problem, tmp_path / "a", search, recall_floor=0.3)
    assert audit(tmp_path / "a" / "table") == []
    own = set(map(tuple, problem.positives.tolist()))
    for direction in DIRECTIONS:
        side, lists = problem[direction], table[direction]
        for row in range(0, len(lists), 37):
            for number, score in zip(lists.negative_ids[row].tolist(), lists.scores[row], strict=True):
                assert ((row, number) if direction == "i2t" else (number, row)) not in own
                one, other = side.anchors[row].tolist(), side.candidates[number].tolist()
                exact = sum((Fraction(a) * Fraction(b) for a, b in zip(one, other, strict=True)), Fraction(0))
                assert score == np.float32(float(exact))


@pytest.mark.parametrize("search", [*SEARCHES, DEEP])
def test_recall_is_that_of_a_brute_force_search_on_the_sample(problem, tmp_path, search):
    """Of 1200 captions 512 are sampled; a true negative is one whose score reaches the h-th of all negatives."""
    table = mined(problem, tmp_path / "a", search, recall_floor=0.3)
    for direction in DIRECTIONS:
        side, about = problem[direction], table.manifest["directions"][direction]
        found = []
        for row in sampled_rows(len(side.anchors), backend.SAMPLED, seed=0):
            ids = sorted(set(range(len(side.candidates))) - set(side.positives[int(row)].tolist()))
            products = side.candidates[ids].astype(np.float64) @ side.anchors[row].astype(np.float64)
            best = {ids[place] for place in np.argsort(-products)[: side.h]}
            found.append(len(best & set(table[direction].negative_ids[row].tolist())) / side.h)
        assert about["recall"] == pytest.approx(np.mean(found), abs=1e-6)
        assert about["recall_anchors"] == len(found) == 512
        low, high = about["recall_interval"]
        assert low < about["recall"] <= high
        assert (about["guarantee"], about["certified_share"]) == ("approximate", 0)


@given(recall=st.floats(0, 1), sampled=st.integers(1, 2000))
def test_the_ends_of_wilsons_interval_are_the_extreme_proportions(recall, sampled):
    """The ends are the proportions whose normal deviation from what was seen is exactly the quantile."""
    for end in wilson_interval(recall, sampled, 10**6):
        deviation = abs(recall - end)
        assert deviation == pytest.approx(NORMAL_QUANTILE * np.sqrt(end * (1 - end) / sampled), abs=1e-7)


def test_of_all_anchors_the_recall_is_known():
    assert wilson_interval(0.7, 20, 20) == (0.7, 0.7)


@pytest.mark.parametrize("search", SEARCHES)
def test_the_wanted_recall_is_reached_and_more_takes_more(problem, tmp_path, search):
    breadths = []
    for wanted in (0.7, 0.99):
        table = mined(problem, tmp_path / f"{wanted}", search, recall_floor=wanted)
        for direction in DIRECTIONS:
            about = table.manifest["directions"][direction]
            assert about["recall"] >= wanted
            breadths.append(int(about["index"]["parameters"].partition("=")[2]))
    assert breadths[0] < breadths[2]
    assert breadths[1] < breadths[3]


@given(enough=st.integers(1, 600), widest=st.integers(1, 600))
def test_the_breadth_is_nearly_the_least_that_is_enough(enough, widest):
    recipe, asked = Recipe("toy", breadth="breadth", widest=widest), []

    def measure(breadth):
        asked.append(breadth)
        return np.full(50, 0.96 if breadth >= enough else 0.94)

    if widest < enough:
        with pytest.raises(ValueError, match=rf"toy finds 94.0% at its widest \(breadth={widest}\), and 95.0% are"):
            choose_breadth(recipe, 0.95, 1000, measure)
        return
    tried = choose_breadth(recipe, 0.95, 1000, measure)
    assert enough <= list(tried)[-1] <= max(enough, STEP * enough)
    assert len(asked) == len(set(asked)) == len(tried)


@given(enough=st.integers(1, 600), beyond=st.integers(1, 599))
def test_a_wider_breadth_is_wider_and_nearly_the_least_that_is_enough(enough, beyond):
    measure = lambda breadth: np.full(9, float(breadth >= enough))  # noqa: E731
    found = [*choose_breadth(Recipe("toy", breadth="b", widest=600), 0.95, 9, measure, beyond)]
    assert max(enough, beyond + 1) <= found[-1] <= max(STEP * enough, STEP * beyond + 1)
    assert min(found) > beyond


def short_at_first(monkeypatch, times):
    """Lets the first choices fall on too small a breadth, as an unlucky sample does."""
    choose, chosen = backend.choose_breadth, []

    def unlucky(recipe, wanted, count, measure, beyond):
        chosen.append(beyond)
        return {beyond + 1: 1.0} if len(chosen) <= times else choose(recipe, wanted, count, measure, beyond)

    monkeypatch.setattr(backend, "choose_breadth", unlucky)
    return chosen


def test_what_falls_short_is_searched_more_widely_and_measured_anew(problem, tmp_path, monkeypatch, caplog):
    """Images are found well enough at once, captions at the second attempt; the lists are those of its breadth."""
    caplog.set_level("INFO")
    chosen = short_at_first(monkeypatch, 1)
    table = mined(problem, tmp_path / "a", "ivf", recall_floor=0.9)
    assert chosen == [0, 0, 1]
    i2t, t2i = (table.manifest["directions"][direction] for direction in DIRECTIONS)
    assert (i2t["index"]["widened"], "widened" in t2i["index"]) == (1, False)
    assert i2t["recall"] >= 0.9
    assert "of the i2t lists, below the floor; searching more widely" in caplog.text
    asked = f"faiss:{i2t['index']['factory']}|{i2t['index']['parameters']}"
    plain = search_problem(problem, search=asked, recall_floor=0.0).lists["i2t"]
    np.testing.assert_array_equal(table.i2t.negative_ids, plain.negative_ids)
    side, found = problem["i2t"], []
    for row in sampled_rows(600, backend.SAMPLED, seed=2):  # those that first fell short were of seed 0
        ids = np.setdiff1d(np.arange(len(side.candidates)), side.positives[int(row)])
        best = ids[np.argsort(-(side.candidates[ids].astype(np.float64) @ side.anchors[row]))[: side.h]]
        found.append(len(np.intersect1d(best, plain.negative_ids[row])) / side.h)
    assert i2t["recall"] == pytest.approx(np.mean(found), abs=1e-6)


def test_a_wider_search_that_was_cut_short_goes_on(problem, tmp_path, monkeypatch):
    short_at_first(monkeypatch, 1)
    whole = mined(problem, tmp_path / "whole", "ivf", recall_floor=0.9)
    short_at_first(monkeypatch, 1)
    calls = []

    def stop(done, total):
        calls.append(done)
        if len(calls) == total + total // 2:  # of two attempts, in the midst of the second
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mined(problem, tmp_path / "a", "ivf", recall_floor=0.9, progress=stop)
    monkeypatch.setattr(backend, "build_index", never)
    again = mined(problem, tmp_path / "a", "ivf", recall_floor=0.9)
    assert again.manifest == whole.manifest


def test_after_two_wider_searches_a_recall_below_the_floor_is_refused(problem, tmp_path, monkeypatch):
    chosen = short_at_first(monkeypatch, 9)
    with pytest.raises(ValueError, match=r"ivf finds .* lists, and mining.recall_floor is 95.0%; let it search wider"):
        mined(problem, tmp_path / "a", "ivf")
    assert chosen == [0, 0, 1, 1, 2, 2]
    assert not (tmp_path / "a" / "table").exists()


def test_the_recall_of_the_sample_is_enough_by_three_standard_errors():
    rng = np.random.default_rng(0)
    everyone = rng.binomial(10, 0.9, 400) / 10
    means = [rng.choice(everyone, 300, replace=False).mean() for _ in range(2000)]
    assert standard_error(rng.choice(everyone, 300, replace=False), 400) == pytest.approx(np.std(means), rel=0.15)
    assert standard_error(everyone, 400) == 0
    recipe = Recipe("toy", breadth="b", widest=2)
    sample = {1: np.repeat([0.8, 1.0], 50), 2: np.ones(100)}
    margin = DEVIATIONS * standard_error(sample[1], 10**6)
    assert list(choose_breadth(recipe, 0.9 - 1.01 * margin, 10**6, sample.get)) == [1]
    assert list(choose_breadth(recipe, 0.9 - 0.99 * margin, 10**6, sample.get)) == [1, 2]


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_run_makes_the_same_bytes(problem, tmp_path, monkeypatch, search):
    hashes, indexes = [], []
    for name in ("one", "two"):
        table = mined(problem, tmp_path / name, search, indexes=tmp_path / name / "kept")
        hashes.append(table.sha256)
        indexes.append({file: content for file, (content, _) in files_of(tmp_path / name / "kept").items()})
    assert hashes[0] == hashes[1]
    assert indexes[0] == indexes[1]


def never(*_, **__):
    raise AssertionError("nothing is to be built")


@pytest.mark.parametrize("search", SEARCHES)
def test_an_index_serves_other_depths_pairs_and_either_side(problem, tmp_path, monkeypatch, search):
    first = mined(problem, tmp_path / "first", search)
    built = [path.name for path in (tmp_path / "kept" / "index").iterdir() if not path.name.startswith(".")]
    monkeypatch.setattr(building, "_fill", never)
    deeper = mined(replace(problem, h_captions=40, h_images=5), tmp_path / "deeper", search)
    swapped = Problem(problem.captions, problem.images, problem.positives[:, ::-1], 10, 20)
    turned = mined(swapped, tmp_path / "turned", search)
    keys = [[t.manifest["directions"][d]["index"]["key"] for d in DIRECTIONS] for t in (first, deeper, turned)]
    assert keys[0] == keys[1] == keys[2][::-1]
    assert sorted(built) == sorted(keys[0])
    assert turned.sha256 == {"i2t": first.sha256["t2i"], "t2i": first.sha256["i2t"]}


def test_other_vectors_have_another_index(problem, tmp_path):
    captions = problem.captions.copy()
    captions[-1, -1] += np.float32(1)
    keys = [
        mined(world, tmp_path / f"{number}", "ivf").manifest["directions"]["i2t"]["index"]["key"]
        for number, world in enumerate((problem, replace(problem, captions=captions)))
    ]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("search", ["ivf", "hnsw", "faiss:PCA8,IVF16,Flat|nprobe=5"])
def test_shards_find_what_one_file_finds(problem, tmp_path, monkeypatch, search):
    """Shards of an index of cells have the same cells; each graph of shards is searched as widely as the whole."""
    whole = mined(problem, tmp_path / "whole", search, recall_floor=0.3)
    monkeypatch.setattr(building, "SHARD_BYTES", 5000)
    parts = mined(problem, tmp_path / "parts", search, indexes=tmp_path / "parted", recall_floor=0.3)
    assert len(files_of(tmp_path / "parted")) > 4
    if search == "hnsw":
        assert all(parts.manifest["directions"][d]["recall"] > 0.3 for d in DIRECTIONS)
    else:
        assert parts.sha256 == whole.sha256


def test_a_crash_while_building_loses_one_shard(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(building, "SHARD_BYTES", 2000)  # 100 vectors
    make, recipe, made = building._shard, ivf(1200), []

    def until_the_third(vectors, rows, trained):
        if rows[0] == 200:
            raise KeyboardInterrupt
        return make(vectors, rows, trained)

    def noting(vectors, rows, trained):
        made.append(rows)
        return make(vectors, rows, trained)

    monkeypatch.setattr(building, "_shard", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        build_index(problem.captions, recipe, tmp_path / "a", 10**9)
    monkeypatch.setattr(building, "_shard", noting)
    whole = build_index(problem.captions, recipe, tmp_path / "b", 10**9)
    assert made == blocks(1200, 100)
    made.clear()
    monkeypatch.setattr(building, "_train", never)
    resumed = build_index(problem.captions, recipe, tmp_path / "a", 10**9)
    assert made == blocks(1200, 100)[2:]
    assert resumed.changed_files() == []
    assert resumed.manifest()["files"] == whole.manifest()["files"]


def test_a_search_that_was_cut_short_goes_on(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "BLOCK", 100)

    def stop(done, total):
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mined(problem, tmp_path / "a", "ivf", progress=stop)
    seen = {path: path.stat().st_mtime_ns for path in (tmp_path / "a" / "work").glob("*.unit")}
    assert len(seen) == 8
    table = mined(problem, tmp_path / "a", "ivf")
    assert {path: path.stat().st_mtime_ns for path in seen} == seen
    assert table.sha256 == mined(problem, tmp_path / "b", "ivf").sha256


def test_an_index_that_was_deleted_meanwhile_is_built_again(problem, tmp_path, monkeypatch):
    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mined(problem, tmp_path / "a", "ivf", progress=stop)
    for path in (tmp_path / "kept" / "index").iterdir():
        path.rename(tmp_path / path.name)
    assert mined(problem, tmp_path / "a", "ivf").sha256 == mined(problem, tmp_path / "b", "ivf").sha256


def test_in_memory_an_index_is_gone_with_its_search(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "mkdtemp", lambda prefix: str(tmp_path))
    store = Memory()
    run_search(problem, choose_backend("ivf"), store)
    assert files_of(tmp_path)
    del store
    gc.collect()
    assert not tmp_path.exists()


def test_one_set_has_one_index(problem):
    alone = Problem(problem.images, problem.images, np.empty((0, 2), np.int32), 7, 0, one_set=True)
    found = search_problem(alone, search="ivf")
    assert tuple(found.guarantees) == ("i2t",)
    assert not (found.lists["i2t"].negative_ids == np.arange(600)[:, None]).any()


def test_too_little_memory_is_refused_with_what_is_needed(problem, tmp_path):
    needed = memory_needed(ivf(1200), 1200, 12)
    with pytest.raises(
        ValueError, match=rf"building IVF16,SQ8 of 1200 vectors takes .*; give at least {needed // 10**6 + 1} "
    ):
        mined(replace(problem, memory=needed - 1), tmp_path / "a", "ivf")
    assert not (tmp_path / "a" / "table").exists()
    assert not (tmp_path / "kept").exists()


def test_more_cells_than_vectors_are_refused_and_leave_nothing(problem, tmp_path):
    with pytest.raises(
        ValueError, match=r"cannot train 'IVF1201,SQ8' on 1200 vectors .it has 1201 cells.; ask for fewer"
    ):
        mined(problem, tmp_path / "a", "faiss:IVF1201,SQ8")
    assert not (tmp_path / "kept").exists()


def test_recipes_grow_with_the_vectors():
    assert [ivf(count).factory for count in (1, 39, 800, 10**6, 5 * 10**7)] == [
        "IVF1,SQ8",
        "IVF1,SQ8",
        "IVF16,SQ8",
        "IVF4096,SQ8",
        "IVF32768,SQ8",
    ]
    assert (hnsw(100).widest, hnsw(10**6).widest) == (100, 4096)
