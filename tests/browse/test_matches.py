"""Marked pairs, as the file of known matches that screens read."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.browse.marks import Matches
from aoq.pipeline.config.screen import Screen
from aoq.pipeline.tables.screens.judge import judge
from aoq.pipeline.tables.screens.judgements import read_matches
from aoq.pipeline.tables.screens.knowledge import Knowledge
from aoq.pipeline.tables.screens.view import bit
from aoq.pipeline.tables.table import read_table

SUFFIXES = ("csv", "parquet", "json")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_marks_are_what_screens_read(tmp_path, suffix):
    file = tmp_path / f"m.{suffix}"
    matches, rng, expected = Matches(file, 8, 30), np.random.default_rng(0), set()
    assert not file.exists()
    for _ in range(60):
        image, caption, is_match = int(rng.integers(3)), int(rng.integers(5)), bool(rng.integers(2))
        matches.mark(image, caption, is_match=is_match)
        expected = expected | {(image, caption)} if is_match else expected - {(image, caption)}
        if file.exists():
            assert read_matches(file, 8, 30).tolist() == sorted(map(list, expected))
        assert [pair in matches for pair in ((image, caption), (7, 29))] == [is_match, False]
        assert len(matches) == len(expected)
    for image, caption in expected:
        matches.mark(image, caption, is_match=False)
    assert read_matches(file, 8, 30).tolist() == []
    assert len(Matches(file, 8, 30)) == 0
    assert {path.name for path in tmp_path.iterdir()} == {file.name, f".{file.name}.lock"}


def test_what_else_is_in_a_file_stays(tmp_path):
    (tmp_path / "m.csv").write_text('note,image_id,caption_id\n"a, b",3,7\n007,4,9\n', encoding="utf-8")
    pq.write_table(pa.table({"caption_id": [7, 9], "who": ["x", "y"], "image_id": [3, 4]}), tmp_path / "m.parquet")
    (tmp_path / "m.json").write_text('{"7": [3], "9": [4, 5]}')
    for suffix in SUFFIXES:
        matches = Matches(tmp_path / f"m.{suffix}", 8, 30)
        matches.mark(0, 9, is_match=True)
        matches.mark(3, 7, is_match=False)
    assert (tmp_path / "m.csv").read_text(encoding="utf-8") == "note,image_id,caption_id\n007,4,9\n,0,9\n"
    assert pq.read_table(tmp_path / "m.parquet").to_pylist() == [
        {"caption_id": 9, "who": "y", "image_id": 4},
        {"caption_id": 9, "who": None, "image_id": 0},
    ]
    assert json.loads((tmp_path / "m.json").read_text()) == {"9": [4, 5, 0]}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_marks_at_once_lose_nothing(tmp_path, suffix):
    """Several pages and several servers write at once."""
    servers = [Matches(tmp_path / f"m.{suffix}", 8, 30) for _ in range(3)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: servers[n % 3].mark(n % 8, n, is_match=True), range(30)))
    assert read_matches(tmp_path / f"m.{suffix}", 8, 30).tolist() == sorted([n % 8, n] for n in range(30))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.txt", None, "one of .parquet, .csv, .json"),
        ("m.csv", "caption_id,image_id\n30,0\n", "pair 0 names caption '30', and there are captions 0 to 29"),
        ("m.csv", "a,b\n1,2\n", "is damaged or not pairs known to match"),
        ("no/m.csv", None, "does not exist; make it, or choose another --matches"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Matches(tmp_path / name, 8, 30)


def test_a_screen_flags_exactly_what_was_marked(source, pages_of, folders, tmp_path):
    file = tmp_path / "m.csv"
    table = read_table(folders[0])
    browse = pages_of(source, file)
    pairs = {(7, int(table.i2t.negative_ids[7, 2])), (int(table.t2i.negative_ids[9, 1]), 9), (0, 349)}
    for image, caption in pairs:
        assert browse.mark(image, caption).status_code == 303
    knowledge = Knowledge(matches=read_matches(file, 70, 350))
    view = judge(table, Screen(positives=str(file)), knowledge)
    for direction in ("i2t", "t2i"):
        anchors, places = np.nonzero(view[direction].flags & bit("positives"))
        flagged = zip(anchors.tolist(), table[direction].negative_ids[anchors, places].tolist(), strict=True)
        listed = {(a, int(n)) for a, row in enumerate(table[direction].negative_ids) for n in row}
        wanted = pairs if direction == "i2t" else {(caption, image) for image, caption in pairs}
        assert set(flagged) == wanted & listed
