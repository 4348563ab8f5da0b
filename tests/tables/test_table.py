"""A table in memory: its columns, its screens, and that what it saves is a table like any other."""

import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from aoq.pipeline.data.noise import write_clean_pairs
from aoq.pipeline.files import reclaim, scratch_folder
from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.screens.view import bit, read_view
from aoq.pipeline.tables.statistics import compare
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.tables.writing import made_whole
from tests.mining.conftest import unit

IMAGE_OF = np.repeat(np.arange(20, dtype=np.int32), 2)
TEXTS = [f"caption {row // 3}" for row in range(40)]


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(3)
    return {"images": unit(rng, 20, 6), "captions": unit(rng, 40, 6)}


@pytest.fixture(scope="module")
def table(vectors):
    return replace(hard_negatives(**vectors, image_of=IMAGE_OF, h=(6, 4)), manifest={})


def test_what_is_saved_is_read_and_sound(table, tmp_path):
    table.save(tmp_path / "table", teacher={"model": "mine"})
    again = read_table(tmp_path / "table")
    assert audit(tmp_path / "table") == audit(again) == audit(table) == []
    assert compare(table, again)["i2t"].same_order == compare(table, again)["t2i"].same_order == 1
    np.testing.assert_array_equal(again.positives, table.positives)
    assert (again.manifest["teacher"], len(again.manifest["dataset"])) == ({"model": "mine"}, 64)
    assert again.sha256 == table.sha256 == replace(again, manifest={}).sha256
    about = again.manifest["directions"]["i2t"]
    assert (about["search"], about["guarantee"], about["certified_share"]) == ("in memory", "exact", 1.0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table"]


def test_only_proven_lists_are_called_exact(table, tmp_path):
    replace(table, t2i=replace(table.t2i, bound=None)).save(tmp_path / "table")
    again = read_table(tmp_path / "table")
    found = [again.manifest["directions"][direction]["guarantee"] for direction in ("i2t", "t2i")]
    assert found == ["exact", "unproven"]
    assert audit(tmp_path / "table") == []
    again.save(tmp_path / "copy")
    assert read_table(tmp_path / "copy").manifest["dataset"] == again.manifest["dataset"]
    assert audit(tmp_path / "copy") == []
    vectors = np.eye(4, dtype=np.float32)
    hard_negatives(vectors, vectors, [0, 0, 1, 2], h=(3, 3)).save(tmp_path / "padded")  # image 0 has two negatives
    padded = read_table(tmp_path / "padded")
    assert padded.i2t.negative_ids[0, -1] == -1
    assert padded.manifest["directions"]["i2t"]["guarantee"] == "exact"


def test_whatever_stands_in_padding_the_table_is_the_same(table, tmp_path):
    ids, scores = table.i2t.negative_ids.copy(), table.i2t.scores.copy()
    ids[4, 3:], scores[4, 3:], scores[5, :] = -1, -np.inf, np.nan
    short = replace(table, i2t=NegativeLists(ids, scores, table.i2t.positive_score))
    short.save(tmp_path / "table")
    again = read_table(tmp_path / "table")
    assert again.sha256 == short.sha256
    assert np.isnan(again.i2t.scores[4, 3:]).all()


def test_a_folder_is_replaced_only_when_asked_and_only_a_table(table, tmp_path):
    table.save(tmp_path / "table")
    with pytest.raises(ValueError, match="already exists; remove it"):
        table.save(tmp_path / "table")
    table.save(tmp_path / "table", overwrite=True, teacher="another")
    assert read_table(tmp_path / "table").manifest["teacher"] == "another"
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("1")
    with pytest.raises(ValueError, match="is not a table"):
        table.save(tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter").read_text() == "1"
    with pytest.raises(ValueError, match="none does not exist; make it"):
        table.save(tmp_path / "none" / "table")
    with pytest.raises(TypeError, match="not JSON serializable"):
        table.save(tmp_path / "table", overwrite=True, teacher=object())
    assert read_table(tmp_path / "table").manifest["teacher"] == "another"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "thesis"]


KILLS = [("os.rename", 1, "old"), ("os.rename", 2, "old"), ("shutil.rmtree", 1, "new")]


@pytest.mark.parametrize("again", ["save", "reclaim"])
@pytest.mark.parametrize(("event", "number", "there"), KILLS)
def test_a_kill_while_a_table_is_replaced_loses_none(tmp_path, event, number, there, again):
    output = tmp_path / "table"

    def make(content, *, overwrite=True):
        with made_whole(output, overwrite=overwrite) as made:
            made.mkdir()
            (made / "manifest.json").write_text(content)

    def make_killed():
        seen = []
        sys.addaudithook(lambda name, _: seen.append(name) or kill() if name == event else None)

        def kill():
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)

        make("new")

    make("old")
    process = multiprocessing.get_context("fork").Process(target=make_killed)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if again == "reclaim":
        assert reclaim(scratch_folder(output))
    else:
        with pytest.raises(ValueError, match="already exists; remove it"):
            make("newer", overwrite=False)
    assert (output / "manifest.json").read_text() == there
    assert list(tmp_path.iterdir()) == [output]


def test_what_lacks_a_direction_or_pairs_is_not_saved(table, tmp_path):
    empty = NegativeLists(np.empty((40, 0), np.int32), np.empty((40, 0), np.float32), np.full(40, np.nan, np.float32))
    half = replace(table, t2i=empty)
    with pytest.raises(ValueError, match="t2i was not mined; mine both"):
        half.save(tmp_path / "table")
    assert audit(half) == []
    assert half.screen(same_text=True, texts=TEXTS).flags("t2i").shape == (40, 0)
    with pytest.raises(ValueError, match="give it `positives`"):
        replace(table, positives=None).save(tmp_path / "table")


def test_positives_of_other_types_or_one_image_per_caption_become_pairs():
    """In a process of its own, where nothing checks the types that a caller gives."""
    code = """
import aoq, numpy as np
from dataclasses import replace
table = aoq.hard_negatives(np.eye(3), np.eye(3), h=1)
for given in (np.arange(3), np.arange(3, dtype=np.int32), table.positives.astype(np.int64)):
    assert replace(table, positives=given).true_pairs.tolist() == [[0, 0], [1, 1], [2, 2]], given
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_screen_takes_arrays_as_it_takes_files(table, vectors, tmp_path):
    known = np.array([[3, table.i2t.negative_ids[3, 1]], [0, 39]], np.int32)
    right = np.linspace(0, 1, 40).astype(np.float32)
    (tmp_path / "known.csv").write_text("image_id,caption_id\n" + "\n".join(f"{i},{c}" for i, c in known) + "\n")
    write_clean_pairs(tmp_path / "clean.parquet", right)
    rules = {"same_text": True, "texts": TEXTS, "image_similarity": 0.5, **vectors, "doubtful_pair": 0.3}
    arrays = table.screen(positives=known, pair_probabilities=right, **rules)
    files = table.screen(positives=tmp_path / "known.csv", pair_probabilities=str(tmp_path / "clean.parquet"), **rules)
    for direction in ("i2t", "t2i"):
        np.testing.assert_array_equal(arrays.flags(direction), files.flags(direction))
        assert len(np.unique(arrays.flags(direction))) > 3
    assert arrays.flags("i2t")[3, 1] & bit("positives")
    assert arrays.view.manifest["recipe_sha256"] != files.view.manifest["recipe_sha256"]


def test_a_screened_table_gives_weights_lists_and_a_view(table, tmp_path):
    screened = table.screen(mutual_rank=2, suspected="downweight")
    for direction in ("i2t", "t2i"):
        flagged = screened.flags(direction) > 0
        assert 0 < flagged.sum() < flagged.size
        np.testing.assert_array_equal(screened.weights(direction), np.where(flagged, 0, 1))
        np.testing.assert_array_equal(screened.weights(direction, suspected="keep"), np.ones(flagged.shape))
        assert ((screened.left(direction).negative_ids >= 0).sum(axis=1) == (~flagged).sum(axis=1)).all()
    table.save(tmp_path / "table")
    screened.save(tmp_path / "view")
    view = read_view(tmp_path / "view", read_table(tmp_path / "table").manifest)
    np.testing.assert_array_equal(view.i2t.flags, screened.flags("i2t"))
    with pytest.raises(ValueError, match="already exists"):
        screened.save(tmp_path / "view")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "no rule is set"),
        ({"same_txt": True}, r"there is no rule 'same_txt'; the rules are range_min, "),
        ({"image_similarity": 0.5, "images": np.zeros((20, 3), np.float32)}, "row 0 of images is zero"),
    ],
)
def test_a_screen_says_what_is_wrong(table, given, message):
    with pytest.raises(ValueError, match=message):
        table.screen(**given)


def test_arrow_and_pandas_columns(table, monkeypatch):
    assert table.to_arrow("i2t").column_names == ["anchor_id", "negative_ids", "scores", "positive_score"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="`pip install pandas`"):
        table.to_pandas("i2t")
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=dict))
    short = table.t2i.negative_ids.copy()
    short[3, 2:] = -1
    rows = replace(table, t2i=replace(table.t2i, negative_ids=short)).screen(mutual_rank=2).to_pandas("t2i")
    assert list(rows) == ["anchor_id", "rank", "negative_id", "score", "positive_score", "flags", "suspicion"]
    assert {len(column) for column in rows.values()} == {40 * 4 - 2}
    place = np.flatnonzero(rows["anchor_id"] == 3)
    assert rows["rank"][place].tolist() == [1, 2]
    assert rows["negative_id"][place].tolist() == table.t2i.negative_ids[3, :2].tolist()
    assert rows["positive_score"][place].tolist() == [table.t2i.positive_score[3]] * 2
    assert set(rows["flags"]) == {"", "mutual_rank"}
