"""`aoq audit`, `stats` and `diff` as users run them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.mining.hard_negatives import hard_negatives


def test_audit_is_green_on_what_was_mined_and_red_on_what_was_changed(aoq, folder, tmp_path):
    table = folder
    sound = aoq("audit", table, root=None)
    assert sound.exit_code == 0
    assert sound.stdout == f"{table} is sound\n"
    copy = tmp_path / "table"
    shutil.copytree(table, copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["teacher"]["weights_sha256"] = "another"
    (copy / "manifest.json").write_text(json.dumps(manifest))
    changed = aoq("audit", copy, root=None)
    assert changed.exit_code == 1
    assert "error: i2t.parquet: its footer says teacher = " in changed.stdout
    assert changed.stderr == "2 checks fail; mine the table again\n"


@pytest.mark.parametrize(("sign", "rank", "is_weak"), [(1.0, "1", False), (-1.0, ">4", True)])
def test_stats_tell_a_weak_teacher_from_false_negatives(aoq, tmp_path, sign, rank, is_weak):
    images = np.random.default_rng(0).normal(size=(20, 8))
    hard_negatives(images, sign * images, np.arange(20), h=4).save(tmp_path / "table")
    shown = aoq("stats", tmp_path / "table", root=None)
    ranks = [line.split()[3:] for line in shown.stdout.splitlines() if line.startswith("lowest positive's rank")]
    assert ranks == [[rank] * 5] * 2
    assert shown.stdout.count("explain: the teacher is weak, or pairs are wrong") == 2 * is_weak
    assert ("aoq screen" in shown.stderr) == (not is_weak)


def test_stats_and_diff_for_people_and_programs(aoq, folder):
    table = folder
    shown = aoq("stats", table, root=None)
    assert shown.exit_code == 0
    assert "lowest positive's rank" in shown.stdout
    assert "in most lists: row" in shown.stdout
    described = json.loads(aoq("stats", table, "--json", root=None).stdout)
    assert described["i2t"]["anchors"] == 60
    same = aoq("diff", table, table, "--depth", 3, root=None)
    assert "1.0000" in same.stdout
    assert json.loads(aoq("diff", table, table, "--json", root=None).stdout)["t2i"]["same_order"] == 1
    wrong = aoq("diff", table, table, "--depth", 999, root=None)
    assert wrong.exit_code == 1
    assert "a depth of 999 is asked for" in wrong.stderr


def test_an_approximate_table_passes_nowhere_for_an_exact_one(aoq, tmp_path, monkeypatch):
    """Mining, its README, stats, audit and verify all say it, with the recall and its interval."""
    pytest.importorskip("faiss")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("images.npy", rng.normal(size=(700, 6)).astype(np.float32))
    mined = aoq("mine", "images.npy", "set", "--unpaired", "--h-captions", 5, "--search", "ivf", root=None)
    assert mined.exit_code == 0, mined.stderr
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
    assert said in aoq("stats", "set", root=None).stdout
    assert json.loads(aoq("stats", "set", "--json", root=None).stdout)["i2t"]["guarantee"] == said
    assert aoq("audit", "set", root=None).stdout == f"set is sound\ni2t: {said}\n"
    assert [path.name for path in Path("artifacts/index").glob("[!.]*")] == [about["index"]["key"]]
    again = aoq("mine", "images.npy", "deeper", "--unpaired", "--h-captions", 9, "--search", "ivf", root=None)
    assert again.exit_code == 0
    assert [path.name for path in Path("artifacts/index").glob("[!.]*")] == [about["index"]["key"]]
