"""Searches by an index: scores are exact, recall is that of the definition, and an index is built once."""

import gc
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline.search import faiss_build, faiss_index
from aoq.pipeline.search.backends import choose_backend, run_search, search_problem
from aoq.pipeline.search.faiss_build import IndexSizes, build_index, ivf, sampled_rows
from aoq.pipeline.search.faiss_index import NORMAL_QUANTILE, STEP, choose_breadth, wilson_interval
from aoq.pipeline.search.problem import DIRECTIONS, Problem, blocks
from aoq.pipeline.search.units import MemoryStore
from aoq.pipeline.tables.audit import audit
from tests.search.problems import mined, two_captions_each

pytest.importorskip("faiss")
SEARCHES = ["ivf", "hnsw"]


@pytest.fixture
def problem():
    return two_captions_each(600)


def about(table):
    return [table.manifest["directions"][direction] for direction in DIRECTIONS]


def files_in(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.faiss")}


def defined_recall(side, lists, seed):
    """Of 512 sampled anchors, the fraction of their h best negatives that the lists have."""
    found = []
    for row in sampled_rows(len(side.anchors), faiss_index.MEASURED_ON, seed=seed):
        ids = np.setdiff1d(np.arange(len(side.candidates)), side.positives[int(row)])
        best = ids[np.argsort(-(side.candidates[ids].astype(np.float64) @ side.anchors[row]))[: side.h]]
        found.append(len(np.intersect1d(best, lists.negative_ids[row])) / side.h)
    assert len(found) == 512
    return pytest.approx(np.mean(found), abs=1e-6)


@pytest.mark.parametrize("search", [*SEARCHES, "faiss:IVF16,SQ8|nprobe=3"])
def test_scores_are_exact_and_recall_is_that_of_a_brute_force_search_on_the_sample(problem, tmp_path, search):
    table = mined(problem, tmp_path / "a", search, recall_floor=0.3)
    assert audit(tmp_path / "a" / "table") == []
    for direction, claimed in zip(DIRECTIONS, about(table), strict=True):
        side, lists = problem[direction], table[direction]
        for row in range(0, len(lists), 37):
            assert not set(lists.negative_ids[row]) & set(side.positives[row])
            for number, score in zip(lists.negative_ids[row].tolist(), lists.scores[row], strict=True):
                one, other = side.anchors[row].tolist(), side.candidates[number].tolist()
                exact = sum((Fraction(a) * Fraction(b) for a, b in zip(one, other, strict=True)), Fraction(0))
                assert score == np.float32(float(exact))
        assert claimed["recall"] == defined_recall(side, lists, seed=0)
        low, high = claimed["recall_interval"]
        assert low < claimed["recall"] <= high
        assert (claimed["guarantee"], claimed["certified_share"], claimed["recall_anchors"]) == ("approximate", 0, 512)


@pytest.mark.parametrize("search", SEARCHES)
def test_the_wanted_recall_is_reached_and_more_takes_more(problem, tmp_path, search):
    breadths = []
    for wanted in (0.7, 0.99):
        both = about(mined(problem, tmp_path / f"{wanted}", search, recall_floor=wanted))
        assert all(each["recall"] >= wanted for each in both)
        breadths.append([int(each["index"]["parameters"].partition("=")[2]) for each in both])
    assert all(narrow < wide for narrow, wide in zip(*breadths, strict=True))


def short_at_first(monkeypatch, times):
    """Lets the first choices fall on too small a breadth, as an unlucky sample does."""
    choose, chosen = choose_breadth, []

    def unlucky(*others):
        chosen.append(others[-1])
        return others[-1] + 1 if len(chosen) <= times else choose(*others)

    monkeypatch.setattr(faiss_index, "choose_breadth", unlucky)
    return chosen


def test_what_falls_short_is_searched_more_widely_measured_anew_and_resumed(problem, tmp_path, monkeypatch, caplog):
    """Images are found well enough at once, captions at the second attempt; the lists are those of its breadth."""
    caplog.set_level("INFO")
    chosen = short_at_first(monkeypatch, 1)
    table = mined(problem, tmp_path / "a", "ivf", recall_floor=0.9)
    assert chosen == [0, 0, 1]
    i2t, t2i = about(table)
    assert (i2t["index"]["widened"], "widened" in t2i["index"]) == (1, False)
    assert i2t["recall"] >= 0.9
    assert "of the i2t lists, below the floor; searching more widely" in caplog.text
    asked = f"faiss:{i2t['index']['factory']}|{i2t['index']['parameters']}"
    plain = search_problem(problem, search=asked, recall_floor=0.0).lists["i2t"]
    np.testing.assert_array_equal(table.i2t.negative_ids, plain.negative_ids)
    assert i2t["recall"] == defined_recall(problem["i2t"], plain, seed=2)  # those that first fell short were of seed 0
    short_at_first(monkeypatch, 1)
    calls = []

    def stop(done, total):
        calls.append(done)
        if len(calls) == total + total // 2:  # of two attempts, in the midst of the second
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mined(problem, tmp_path / "b", "ivf", recall_floor=0.9, progress=stop)
    monkeypatch.setattr(faiss_index, "build_index", never)
    assert mined(problem, tmp_path / "b", "ivf", recall_floor=0.9).manifest == table.manifest


@pytest.mark.parametrize(
    ("search", "attempts"), [("faiss:IVF64,Flat", []), ("faiss:IVF64,Flat|nprobe=2", []), ("ivf", [0, 0, 1, 1, 2, 2])]
)
def test_a_recall_below_the_floor_is_refused_after_two_wider_searches(problem, tmp_path, monkeypatch, search, attempts):
    """What a user describes is searched no wider."""
    chosen = short_at_first(monkeypatch, 9)
    with pytest.raises(ValueError, match=r"finds .* lists, but the recall floor is 95.0%; search more widely"):
        mined(problem, tmp_path / "a", search)
    assert chosen == attempts
    assert not (tmp_path / "a" / "table").exists()


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_run_makes_the_same_bytes(problem, tmp_path, search):
    one, two = (mined(problem, tmp_path / name, search, indexes=tmp_path / name / "kept") for name in ("one", "two"))
    assert one.sha256 == two.sha256
    assert files_in(tmp_path / "one" / "kept") == files_in(tmp_path / "two" / "kept")


def never(*_, **__):
    raise AssertionError("nothing is to be built")


@pytest.mark.parametrize("search", SEARCHES)
def test_an_index_serves_other_depths_pairs_and_either_side(problem, tmp_path, monkeypatch, search):
    first = mined(problem, tmp_path / "first", search)
    monkeypatch.setattr(faiss_build, "_fill", never)
    deeper = mined(replace(problem, h_captions=40, h_images=5), tmp_path / "deeper", search)
    swapped = Problem(problem.captions, problem.images, problem.positives[:, ::-1], 10, 20)
    turned = mined(swapped, tmp_path / "turned", search)
    keys = [[each["index"]["key"] for each in about(table)] for table in (first, deeper, turned)]
    assert keys[0] == keys[1] == keys[2][::-1]
    assert sorted({path.parts[1] for path in files_in(tmp_path / "kept")}) == sorted(keys[0])
    assert turned.sha256 == {"i2t": first.sha256["t2i"], "t2i": first.sha256["i2t"]}


@pytest.mark.parametrize("search", ["ivf", "hnsw", "faiss:PCA8,IVF16,Flat|nprobe=5"])
def test_shards_find_what_one_file_finds(problem, tmp_path, monkeypatch, search):
    """Shards of an index of cells have the same cells; each graph of shards is searched as widely as the whole."""
    whole = mined(problem, tmp_path / "whole", search, recall_floor=0.3)
    monkeypatch.setattr(faiss_build, "SHARD_BYTES", 5000)
    parts = mined(problem, tmp_path / "parts", search, indexes=tmp_path / "parted", recall_floor=0.3)
    assert len(files_in(tmp_path / "parted")) > 4
    if search == "hnsw":
        assert all(each["recall"] > 0.3 for each in about(parts))
    else:
        assert parts.sha256 == whole.sha256


def test_a_crash_while_building_loses_one_shard(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(faiss_build, "SHARD_BYTES", 2000)  # 100 vectors
    make, recipe, made, is_stopped = faiss_build._shard, ivf(1200), [], True

    def noting(vectors, rows, *others):
        if rows[0] == 200 and is_stopped:
            raise KeyboardInterrupt
        made.append(rows)
        return make(vectors, rows, *others)

    monkeypatch.setattr(faiss_build, "_shard", noting)
    with pytest.raises(KeyboardInterrupt):
        build_index(problem.captions, recipe, tmp_path / "a", 10**9)
    is_stopped = False
    resumed = build_index(problem.captions, recipe, tmp_path / "a", 10**9)
    assert made == blocks(1200, 100)
    assert list(resumed.problems()) == []
    whole = build_index(problem.captions, recipe, tmp_path / "b", 10**9)
    assert resumed.manifest()["files"] == whole.manifest()["files"]
    (other := problem.captions.copy())[-1, -1] += np.float32(1)
    assert build_index(other, recipe, tmp_path / "b", 10**9).key != whole.key


def test_an_index_that_was_deleted_meanwhile_is_built_again(problem, tmp_path):
    def stop(done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mined(problem, tmp_path / "a", "ivf", progress=stop)
    for path in (tmp_path / "kept" / "index").iterdir():
        path.rename(tmp_path / path.name)
    assert mined(problem, tmp_path / "a", "ivf").sha256 == mined(problem, tmp_path / "b", "ivf").sha256


def test_in_memory_an_index_is_gone_with_its_search(problem, tmp_path, monkeypatch):
    monkeypatch.setattr(faiss_index, "mkdtemp", lambda prefix: str(tmp_path))
    store = MemoryStore()
    run_search(problem, choose_backend("ivf"), store)
    assert files_in(tmp_path)
    del store
    gc.collect()
    assert not tmp_path.exists()


def test_an_index_that_cannot_be_built_is_refused_and_leaves_nothing(problem, tmp_path):
    needed = IndexSizes.of(ivf(1200), 1200, 12).memory
    with pytest.raises(ValueError, match=rf"IVF16,SQ8 of 1200 vectors takes .*; give at least {needed // 10**6 + 1} "):
        mined(replace(problem, memory=needed - 1), tmp_path / "a", "ivf")
    with pytest.raises(ValueError, match=r"needs 1201 vectors to train 'IVF1201,SQ8', got 1200; ask for fewer"):
        mined(problem, tmp_path / "a", "faiss:IVF1201,SQ8")
    assert not (tmp_path / "a" / "table").exists()
    assert not (tmp_path / "kept").exists()


@given(recall=st.floats(0, 1), sampled=st.integers(1, 2000))
def test_the_ends_of_wilsons_interval_are_the_extreme_proportions(recall, sampled):
    """The ends are the proportions whose normal deviation from what was seen is exactly the quantile."""
    for end in wilson_interval(recall, sampled, 10**6):
        deviation = abs(recall - end)
        assert deviation == pytest.approx(NORMAL_QUANTILE * np.sqrt(end * (1 - end) / sampled), abs=1e-7)
    assert wilson_interval(recall, sampled, sampled) == (recall, recall)  # of all anchors it is known


@given(enough=st.integers(1, 600), widest=st.integers(1, 600), beyond=st.integers(0, 599))
def test_the_breadth_is_nearly_the_least_that_is_enough(enough, widest, beyond):
    """And wider than the breadth that was not enough."""
    widest = max(widest, beyond + 1)
    asked = []

    def measure(breadth):
        asked.append(breadth)
        return np.full(50, 0.96 if breadth >= enough else 0.94)

    if widest < enough:
        with pytest.raises(ValueError, match=rf"toy\|b={widest} finds 94.0% at its widest, but 95.0% is needed"):
            choose_breadth("toy|b", widest, measure, 0.95, 1000, beyond)
        return
    found = choose_breadth("toy|b", widest, measure, 0.95, 1000, beyond)
    assert max(enough, beyond + 1) <= found <= max(STEP * enough, STEP * beyond + 1)
    assert min(asked) > beyond
    assert len(asked) == len(set(asked))


def test_the_recall_of_the_sample_is_enough_by_three_standard_errors():
    """Two samples, the other half as large, differ by sqrt(3) times the standard error of the first."""
    rng, everyone = np.random.default_rng(0), np.repeat([0.8, 1.0], 200)
    error = float(np.std([rng.choice(everyone, 100, replace=False).mean() for _ in range(4000)]))
    sample = {1: np.repeat([0.8, 1.0], 50), 2: np.ones(100)}
    margin = 3 * 3**0.5 * error
    for wanted, chosen in ((0.9 - 1.05 * margin, 1), (0.9 - 0.95 * margin, 2)):
        assert choose_breadth("toy|b", 2, sample.get, wanted, 400) == chosen
    assert choose_breadth("toy|b", 2, sample.get, 0.9, 100) == 1  # of all anchors the recall is known
