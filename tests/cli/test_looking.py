"""Every command that looks at tables takes an experiment or any table's folder."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import TINY, run


@pytest.mark.parametrize(
    "arguments", [("stats", "--json"), ("stats",), ("diff", "SAME", "--json"), ("inspect", "--image", "3", "--json")]
)
def test_an_experiment_and_its_tables_folder_say_the_same(aoq, folder, arguments):
    command, *more = arguments

    def shown(table):
        found = aoq(command, table, *(table if given == "SAME" else given for given in more))
        assert found.exit_code == 0, found.stderr
        return found.stdout

    if command == "inspect":  # which knows the texts of an experiment
        of_folder, of_experiment = (json.loads(shown(table))[0]["negatives"] for table in (folder, TINY))
        assert [one["row"] for one in of_folder] == [one["row"] for one in of_experiment]
        assert {one["text"] for one in of_folder} == {""} != {one["text"] for one in of_experiment}
        return
    assert shown(folder) == shown(folder.parent) == shown(TINY) == shown(f"{TINY}@second_round.epochs=9")


def test_audit_screen_export_and_judging_take_an_experiment(aoq, mined, folder, tmp_path):
    assert aoq("audit", TINY).stdout == f"{folder} is sound\n"
    exact = dict.fromkeys(("i2t", "t2i"), "exact, 100.00% certified")
    assert json.loads(aoq("audit", TINY, "--json").stdout) == {"table": str(folder), "errors": [], "guarantees": exact}
    rules = ("--near-text", 0.7, "--caption-similarity", 0.9)
    assert aoq("screen", TINY, tmp_path / "own", *rules).exit_code == 0
    world, embeddings = (next((mined / stage).glob("*/MANIFEST.json")).parent for stage in ("world", "embeddings"))
    given = ("--texts", world / "train_caps.txt", "--caption-vectors", embeddings / "captions.npy")
    assert aoq("screen", folder, tmp_path / "given", *rules, *given).exit_code == 0
    for direction in ("i2t", "t2i"):
        own, other = (pq.read_table(tmp_path / name / f"{direction}.parquet") for name in ("own", "given"))
        assert own.equals(other)
    for table, name, more in ((TINY, "own", ()), (folder, "given", ("--data", world))):
        assert aoq("to-judge", table, tmp_path / f"{name}.csv", "--top", 2, *more).exit_code == 0
        texts = ("--format", "pylate", "--direction", "t2i", "--image-texts", world / "train_ids.txt")
        assert aoq("export", table, tmp_path / f"{name}-pylate", *texts, *more).exit_code == 0
        assert aoq("batches", table, tmp_path / f"{name}-batches", "--batch-size", 4).exit_code == 0
        assert aoq("publish", table, tmp_path / f"{name}-published", *more).exit_code == 0
    assert (tmp_path / "own.csv").read_bytes() == (tmp_path / "given.csv").read_bytes()
    for file in ("batches/epoch-000.parquet", "published/images.parquet", "pylate/train.parquet"):
        own, given = (tmp_path / f"{name}-{file}" for name in ("own", "given"))
        if own.exists() or given.exists():
            assert pq.read_table(own).equals(pq.read_table(given))
    assert (tmp_path / "own-published" / "images.parquet").is_file()


@pytest.mark.parametrize("command", ["inspect", "stats", "audit", "to-judge"])
def test_what_is_neither_is_said(aoq, command):
    more = {"inspect": ["--image", "0"], "to-judge": ["out.csv"]}.get(command, [])
    shown = aoq(command, "demmo", *more)
    assert shown.exit_code == 1
    assert (
        "demmo is neither an experiment nor a table's folder with manifest.json; did you mean 'demo'?" in shown.stderr
    )


def test_inspect_shows_texts_and_ids_that_are_given_or_kept(files):
    table = read_table(Path("table"))
    best = int(table.i2t.negative_ids[3, 0])
    (bare,) = json.loads(run("inspect", "table", "--image", 3, "--top", 1, "--json").stdout)
    assert (bare["image_id"], bare["negatives"][0]["row"], bare["negatives"][0]["text"]) == ("3", best, "")
    assert bare["negatives"][0]["duplicate"] == ""
    assert [one["row"] for one in bare["positives"]] == [6, 7]
    assert bare["lowest_positive_score"] == pytest.approx(float(table.i2t.positive_score[3]))
    (named,) = json.loads(
        run(
            "inspect", "table", "--image", "3.jpg", "--texts", "captions.txt", "--image-ids", "ids.txt", "--json"
        ).stdout
    )
    assert named["negatives"][0]["text"] == f"caption {best}"
    assert named["negatives"][0]["image_id"] == f"{best // 2}.jpg"
    (files / "captions_ids.txt").write_text("".join(f"c{row}\n" for row in range(30)))
    kept = ("--per-image", 2, "--normalise", "--image-ids", "ids.txt", "--caption-ids", "captions_ids.txt")
    assert run("mine", "images.npy", "captions.npy", "kept", *kept, "--h-captions", 6, "--h-images", 4).exit_code == 0
    (of_caption,) = json.loads(run("inspect", "kept", "--caption", "c7", "--json").stdout)
    assert (of_caption["anchor"], of_caption["caption_id"], of_caption["image_id"]) == (7, "c7", "3.jpg")
    assert f"c{best}" in run("inspect", "kept", "--image", "3.jpg").stdout
    assert "rows are 0 to 29, ids look like 'c0'" in run("inspect", "kept", "--caption", "c99").stderr
    assert "2 texts are given" in run("inspect", "table", "--image", 0, "--texts", _short(files)).stderr


def _short(files):
    (files / "short.txt").write_text("one\ntwo\n")
    return "short.txt"


def test_diff_warns_of_other_data(files):
    assert run("diff", "table", "table").stderr == ""
    mine = ("mine", "images.npy", "captions.npy")
    sizes = ("--normalise", "--h-captions", 6, "--h-images", 4)
    (files / "other.csv").write_text("image_id,caption_id\n0,29\n1,28\n")
    assert run(*mine, "other", "--pairs", "other.csv", *sizes).exit_code == 0
    shown = run("diff", "table", "other")
    assert shown.exit_code == 0
    assert shown.stderr.startswith(
        "warning: the tables have other true pairs and other fingerprints of their data; row"
    )
    (files / "turned.txt").write_text("".join(f"{row}.jpg\n" for row in reversed(range(15))))
    for name, ids in (("a", "ids.txt"), ("b", "turned.txt")):
        assert run(*mine, name, "--per-image", 2, "--image-ids", ids, *sizes).exit_code == 0
    assert run("diff", "a", "b").stderr.startswith("warning: the tables have other ids of images; row n")
