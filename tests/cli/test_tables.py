"""`aoq inspect`, `audit`, `stats` and `diff`: an experiment's table, or any table's folder."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.data.folder import open_split
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import TINY, only, run


def test_audit_is_green_on_what_was_mined_and_red_on_what_was_changed(folder, tmp_path):
    sound = run("audit", folder)
    assert sound.stdout == f"{folder} is sound\n"
    copy = shutil.copytree(folder, tmp_path / "table")
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["teacher"]["weights_sha256"] = "another"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    changed = run("audit", copy, code=1)
    assert "error: i2t.parquet: its footer says teacher = " in changed.stdout
    assert changed.stderr == "2 checks fail; mine the table again\n"


@pytest.mark.parametrize(("sign", "rank", "is_weak"), [(1.0, "1", False), (-1.0, ">4", True)])
def test_stats_tell_a_weak_teacher_from_false_negatives(tmp_path, sign, rank, is_weak):
    images = np.random.default_rng(0).normal(size=(20, 8))
    hard_negatives(images, sign * images, np.arange(20), h=4).save(tmp_path / "table")
    shown = run("stats", tmp_path / "table")
    ranks = [line.split()[3:] for line in shown.stdout.splitlines() if line.startswith("lowest positive's rank")]
    assert ranks == [[rank] * 5] * 2
    assert shown.stdout.count("explain: the teacher is weak, or pairs are wrong") == 2 * is_weak
    assert ("aoq screen" in shown.stderr) == (not is_weak)


def test_stats_and_diff_for_people_and_programs(folder):
    shown = run("stats", folder)
    assert "lowest positive's rank" in shown.stdout
    assert "listed most often: row" in shown.stdout
    assert shown.stdout.count("negatives at or below a percentage of the lowest positive's score, by rank:") == 2
    described = json.loads(run("stats", folder, "--json").stdout)
    assert described["i2t"]["anchors"] == 60
    same = run("diff", folder, folder, "--depth", 3)
    assert "1.0000" in same.stdout
    assert json.loads(run("diff", folder, folder, "--json").stdout)["t2i"]["same_order"] == 1


def test_an_approximate_table_passes_nowhere_for_an_exact_one(tmp_path, monkeypatch):
    """Mining, its README, stats, audit and verify all say it, with the recall and its interval."""
    pytest.importorskip("faiss")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("images.npy", rng.normal(size=(700, 6)).astype(np.float32))
    mined = run("mine", "images.npy", "set", "--unpaired", "--h-captions", 5, "--search", "ivf")
    about = json.loads(Path("set/manifest.json").read_text())["directions"]["i2t"]
    low, high = about["recall_interval"]
    said = (
        f"approximate, {about['recall']:.2%} of the true lists (95% interval {low:.2%} to {high:.2%}, 512 anchors), "
        f"not certified; index {about['index']['factory']} {about['index']['parameters']}"
    )
    kept = tmp_path / "artifacts" / "index" / about["index"]["key"]
    of_index = f"  its index is kept for other depths and pairs, until `aoq gc --delete`: {kept}"
    assert mined.stdout == f"i2t: 700 lists of 5, {said}\n{of_index}\nset\n"
    assert f"- `i2t`: {said}." in Path("set/README.md").read_text()
    assert said in run("stats", "set").stdout
    assert json.loads(run("stats", "set", "--json").stdout)["i2t"]["guarantee"] == said
    assert run("audit", "set").stdout == f"set is sound\ni2t: {said}\n"
    assert [path.name for path in Path("artifacts/index").glob("[!.]*")] == [about["index"]["key"]]
    run("mine", "images.npy", "deeper", "--unpaired", "--h-captions", 9, "--search", "ivf")
    assert [path.name for path in Path("artifacts/index").glob("[!.]*")] == [about["index"]["key"]]
    narrow = ("mine", "images.npy", "narrow", "--unpaired", "--h-captions", 5, "--search", "faiss:IVF8,Flat|nprobe=1")
    assert "the recall floor is 100.0%" in run(*narrow, "--recall-floor", 1, code=1).stderr
    assert any((tmp_path / ".narrow.work" / "shards").iterdir())  # a lower floor goes on with these
    run(*narrow, "--recall-floor", 0.01)


def test_audit_screen_and_export_take_an_experiment(aoq, world, embeddings, folder, tmp_path):
    assert aoq("audit", TINY).stdout == f"{folder} is sound\n"
    exact = dict.fromkeys(("i2t", "t2i"), "exact, 100.00% certified")
    assert json.loads(aoq("audit", TINY, "--json").stdout) == {"table": str(folder), "errors": [], "guarantees": exact}
    aoq("screen", TINY, tmp_path / "zero", "--caption-similarity", 0, "--allow-empty")
    rules = ("--near-text", 0.7, "--caption-similarity", 0.9)
    aoq("screen", TINY, tmp_path / "own", *rules)
    given = ("--texts", world / "train_caps.txt", "--caption-vectors", embeddings / "captions.npy")
    aoq("screen", folder, tmp_path / "given", *rules, *given)
    for direction in ("i2t", "t2i"):
        own, other = (pq.read_table(tmp_path / name / f"{direction}.parquet") for name in ("own", "given"))
        assert own.equals(other)
    texts = ("--format", "pylate", "--direction", "t2i", "--image-texts", world / "train_ids.txt")
    aoq("export", TINY, tmp_path / "own-pylate", *texts)
    aoq("export", folder, tmp_path / "given-pylate", *texts, "--data", world)
    own, other = (pq.read_table(tmp_path / f"{name}-pylate" / "train.parquet") for name in ("own", "given"))
    assert own.equals(other)


def test_inspect_shows_texts_and_ids_that_are_given_or_kept(files):
    table = read_table(Path("table"))
    best = int(table.i2t.negative_ids[3, 0])
    (bare,) = json.loads(run("inspect", "table", "--image", 3, "--top", 1, "--json").stdout)
    assert (bare["image_id"], bare["negatives"][0]["row"], bare["negatives"][0]["text"]) == ("3", best, "")
    assert bare["negatives"][0]["duplicate"] == ""
    assert [one["row"] for one in bare["positives"]] == [6, 7]
    assert bare["lowest_positive_score"] == pytest.approx(float(table.i2t.positive_score[3]))
    given = ("--texts", "captions.txt", "--image-ids", "ids.txt")
    (named,) = json.loads(run("inspect", "table", "--image", "3.jpg", *given, "--json").stdout)
    assert named["negatives"][0]["text"] == f"caption {best}"
    assert named["negatives"][0]["image_id"] == f"{best // 2}.jpg"
    (files / "shared.txt").write_text("".join(f"{'x' if row in (3, 5) else row}\n" for row in range(15)))
    shared = run("inspect", "table", "--image", "x", "--image-ids", "shared.txt")
    assert shared.stderr.startswith("images 3, 5 have the id 'x'; this is the first\n")
    assert shared.stdout.startswith("image 3 (x), i2t")
    (files / "captions_ids.txt").write_text("".join(f"c{row}\n" for row in range(30)))
    kept = ("--per-image", 2, "--normalise", "--image-ids", "ids.txt", "--caption-ids", "captions_ids.txt")
    run("mine", "images.npy", "captions.npy", "kept", *kept, "--h-captions", 6, "--h-images", 4)
    (of_caption,) = json.loads(run("inspect", "kept", "--caption", "c7", "--json").stdout)
    assert (of_caption["anchor"], of_caption["caption_id"], of_caption["image_id"]) == (7, "c7", "3.jpg")
    assert f"c{best}" in run("inspect", "kept", "--image", "3.jpg").stdout
    assert "rows are 0 to 29, ids look like 'c0'" in run("inspect", "kept", "--caption", "c99", code=1).stderr


def test_diff_warns_of_other_data(files):
    assert run("diff", "table", "table").stderr == ""
    mine = ("mine", "images.npy", "captions.npy")
    sizes = ("--normalise", "--h-captions", 6, "--h-images", 4)
    (files / "other.csv").write_text("image_id,caption_id\n0,29\n1,28\n")
    run(*mine, "other", "--pairs", "other.csv", *sizes)
    shown = run("diff", "table", "other")
    assert shown.stderr.startswith(
        "warning: the tables have different true pairs and different fingerprints of their data; if row"
    )
    (files / "turned.txt").write_text("".join(f"{row}.jpg\n" for row in reversed(range(15))))
    for name, ids in (("a", "ids.txt"), ("b", "turned.txt")):
        run(*mine, name, "--per-image", 2, "--image-ids", ids, *sizes)
    assert run("diff", "a", "b").stderr.startswith("warning: the tables have different ids of images; if row n")


def test_inspect_shows_lists_as_they_are_in_the_table_by_row_and_by_id(aoq, mined):
    shown = json.loads(aoq("inspect", TINY, "--image", "3", "--top", "5", "--json").stdout)[0]
    table = read_table(only(mined, "hard_negatives") / "table")
    split = open_split(only(mined, "world"), "train")
    assert shown["direction"] == "i2t"
    assert [negative["row"] for negative in shown["negatives"]] == table.i2t.negative_ids[3, :5].tolist()
    assert [negative["rank"] for negative in shown["negatives"]] == [1, 2, 3, 4, 5]
    for negative in shown["negatives"]:
        assert negative["text"] == split.captions[negative["row"]]
        assert negative["image_id"] == split.ids[split.image_of[negative["row"]]]
    store = EmbeddingStore.open(only(mined, "embeddings"))
    for positive in shown["positives"]:
        assert positive["score"] == pytest.approx(float(store.images[3] @ store.captions[positive["row"]]), abs=1e-6)
        above = int((table.i2t.scores[3] >= np.float32(positive["score"])).sum())
        assert positive["rank"] == (None if above == table.i2t.h else above + 1)
    by_row = aoq("inspect", TINY, "--image", "4", "--json").stdout
    assert aoq("inspect", TINY, "--image", split.ids[4], "--json").stdout == by_row
    (of_caption,) = json.loads(aoq("inspect", TINY, "--caption", 21, "--json").stdout)
    assert (of_caption["anchor"], of_caption["text"]) == (21, split.captions[21])
    assert "would be" in aoq("inspect", TINY, "--image", "3", "--top", "4").stdout
    of_caption = aoq("inspect", TINY, "--caption", "3", "--top", "4").stdout
    assert re.search(r"  would be (?:beyond )?rank \d+  image train-000000\n", of_caption)
