"""Marks are kept in the file of known matches that screens read, and beside it by marker, with their agreement."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import cohen_kappa_score

from aoq.pipeline.browse.marks import Marks, agreement_on
from aoq.pipeline.tables.screens.judgements import read_judgements, read_matches

SUFFIXES = ("csv", "parquet", "json")


def marks_of(folder, marker="ann", name="m.csv"):
    return Marks(folder / name, 8, 30, marker)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_marks_are_what_screens_read(tmp_path, suffix):
    file = tmp_path / f"m.{suffix}"
    marks, rng, expected = marks_of(tmp_path, name=file.name), np.random.default_rng(0), set()
    for _ in range(60):
        image, caption, is_match = int(rng.integers(3)), int(rng.integers(5)), bool(rng.integers(2))
        marks.mark(image, caption, is_match, "/")
        expected = expected | {(image, caption)} if is_match else expected - {(image, caption)}
        assert marks.known.content == expected
        assert not file.exists() or read_matches(file, 8, 30).tolist() == sorted(map(list, expected))
        assert [marks.judgement(image, caption), marks.judgement(7, 29)] == [is_match, None]
    for image, caption in expected:
        marks.mark(image, caption, None, "/")
    assert read_matches(file, 8, 30).tolist() == []
    written = {file.name, "m.marks.csv"}
    assert {path.name for path in tmp_path.iterdir()} == written | {f".{name}.lock" for name in written}


def test_what_else_is_in_a_file_stays(tmp_path):
    (tmp_path / "m.csv").write_text('note,image_id,caption_id\n"a, b",3,7\n007,4,9\n', encoding="utf-8")
    pq.write_table(pa.table({"caption_id": [7, 9], "who": ["x", "y"], "image_id": [3, 4]}), tmp_path / "m.parquet")
    (tmp_path / "m.json").write_text('{"7": [3], "9": [4, 5]}')
    for suffix in SUFFIXES:
        marks = marks_of(tmp_path, name=f"m.{suffix}")
        marks.mark(0, 9, True, "/")
        marks.mark(3, 7, False, "/")
    assert (tmp_path / "m.csv").read_text(encoding="utf-8") == "note,image_id,caption_id\n007,4,9\n,0,9\n"
    assert pq.read_table(tmp_path / "m.parquet").to_pylist() == [
        {"caption_id": 9, "who": "y", "image_id": 4},
        {"caption_id": 9, "who": None, "image_id": 0},
    ]
    assert json.loads((tmp_path / "m.json").read_text()) == {"9": [4, 5, 0]}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_marks_at_once_lose_nothing(tmp_path, suffix):
    """Several pages and several servers write at once."""
    servers = [marks_of(tmp_path, name=f"m.{suffix}") for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: servers[n % 3].mark(n % 8, n, True, "/"), range(30)))
    assert read_matches(tmp_path / f"m.{suffix}", 8, 30).tolist() == sorted([n % 8, n] for n in range(30))
    assert servers[0].counts() == (30, 0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.txt", None, "one of .parquet, .csv, .json"),
        ("m.csv", "caption_id,image_id\n30,0\n", "pair 0 names caption '30', but there are captions 0 to 29"),
        ("m.csv", "a,b\n1,2\n", "is damaged or not pairs known to match"),
        ("m.marks.csv", "a,b\n1,2\n", r"m\.marks\.csv is damaged or not marks"),
        ("no/m.csv", None, "does not exist; make it, or choose another --matches"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        marks_of(tmp_path, name=name.replace(".marks", ""))


def test_each_marker_has_a_judgement_of_their_own(tmp_path):
    ann, bob = marks_of(tmp_path), marks_of(tmp_path, 'bob, "the" second')
    ann.mark(1, 2, True, "/")
    ann.mark(3, 4, False, "/")
    bob.mark(3, 4, False, "/")
    assert [ann.counts(), bob.counts()] == [(1, 1), (0, 1)]
    assert [bob.judgement(*pair) for pair in ((1, 2), (3, 4), (5, 6))] == [None, False, None]
    bob.mark(1, 2, False, "/")
    assert read_matches(tmp_path / "m.csv", 8, 30).tolist() == [[1, 2]]  # Ann still says so
    assert read_judgements(tmp_path / "m.marks.csv", 8, 30).probabilities.tolist() == [0.5, 0.0]
    ann.mark(1, 2, None, "/")
    assert not len(read_matches(tmp_path / "m.csv", 8, 30))
    ann.undo()
    bob.undo()
    judged = read_judgements(tmp_path / "m.marks.csv", 8, 30)
    assert judged.pairs.tolist() == [[1, 2], [3, 4]]
    assert judged.probabilities.tolist() == [1.0, 0.0]


def test_agreement_is_cohens_kappa():
    rng = np.random.default_rng(0)
    for _ in range(20):
        marks = rng.integers(0, 2, (12, 2))
        same, kappa = agreement_on([(bool(ours), bool(theirs)) for ours, theirs in marks])
        assert same == pytest.approx((marks[:, 0] == marks[:, 1]).mean())
        assert kappa == pytest.approx(cohen_kappa_score(*marks.T))
    assert agreement_on([(True, True)]) == (1, None)


def test_markers_that_share_pairs_are_compared(browse):
    assert "No two markers" in browse.text("/agreement")
    bob = Marks(browse.marks.known.path, 70, 350, "bob")
    for pair, ours, theirs in (((1, 30), True, True), ((1, 31), False, True), ((2, 40), False, False)):
        browse.marks.mark(*pair, ours, "/")
        bob.mark(*pair, theirs, "/")
    bob.mark(3, 60, True, "/")
    assert "<td>ann, bob</td><td>3</td><td>66.7</td><td>0.40</td>" in browse.text("/agreement")
