"""`--json` of the commands about artefacts: what they show, for programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aoq.pipeline.cli.artifacts import _difference
from tests.cli.test_commands import TINY, only


def test_verify_names_the_state_of_each_artefact(aoq, mined, tmp_path):
    shown = aoq("verify", TINY, "--json")
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    states = {one["stage"]: one["state"] for one in found["stages"]}
    assert (states["hard_negatives"], states["second_round"]) == ("whole", "missing")
    assert all(one["problems"] == [] for one in found["stages"])
    assert found["dataset"]["problems"] == []

    root = shutil.copytree(mined, tmp_path / "copy", symlinks=True)
    table = only(root, "hard_negatives") / "table" / "i2t.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    shown = aoq("verify", TINY, "--json", root=root)
    assert shown.exit_code == 1
    (changed,) = [one for one in json.loads(shown.stdout)["stages"] if one["state"] == "changed"]
    assert changed["stage"] == "hard_negatives"
    assert changed["path"] == str(only(root, "hard_negatives"))
    assert "i2t.parquet was changed" in changed["problems"][0]


def test_gc_names_what_nothing_needs_and_what_became_of_it(aoq, mined, tmp_path):
    root = shutil.copytree(mined, tmp_path / "root", symlinks=True)
    made = len(list(root.glob("*/*/MANIFEST.json")))
    assert json.loads(aoq("gc", "--json", root=root).stdout) == {"artefacts": made, "unneeded": []}
    (root / "runs" / "tiny" / "hard_negatives").unlink()
    table = only(root, "hard_negatives")
    size = sum(file.stat().st_size for file in table.rglob("*") if file.is_file())
    one = {"path": str(table), "finished": True, "bytes": size, "state": "there"}
    assert json.loads(aoq("gc", "--json", root=root).stdout)["unneeded"] == [one]
    assert table.is_dir()
    assert json.loads(aoq("gc", "--delete", "--json", root=root).stdout)["unneeded"] == [{**one, "state": "deleted"}]
    assert not table.exists()


@pytest.mark.parametrize(
    ("ours", "theirs", "differences"),
    [
        (
            {"upstream": [["second_round", "a"], ["second_round", "b"]]},
            {"upstream": [["second_round", "c"], ["second_round", "b"]]},
            {"upstream.second_round": ("a", "c")},
        ),
        (
            {"upstream": [["second_round", "a"], ["second_round", "b"]]},
            {"upstream": [["second_round", "a"]]},
            {"upstream.second_round 2": ("b", "nothing")},
        ),
        (
            {"ingredients": {"sampling": {"windows": [[0.0, 0.5], [0.0, 1.0]]}}},
            {"ingredients": {"sampling": {"windows": [[0.0, 0.2], [0.0, 1.0]]}}},
            {"ingredients.sampling.windows": ([[0.0, 0.5], [0.0, 1.0]], [[0.0, 0.2], [0.0, 1.0]])},
        ),
    ],
)
def test_no_difference_hides_another(ours, theirs, differences):
    assert _difference(ours, theirs) == differences


def test_explain_names_the_nearest_and_the_differences(aoq, mined):
    there = json.loads(aoq("explain", TINY, "hard_negatives", "--json").stdout)
    assert (there["state"], there["nearest"], there["differences"]) == ("done", None, {})
    assert Path(there["path"]) == only(mined, "hard_negatives")
    assert there["ingredients"]["h_captions"] == 20
    other = json.loads(aoq("explain", TINY, "hard_negatives", "--json", "--override", "mining.h_images=7").stdout)
    assert (other["state"], other["nearest"]) == ("missing", there["key"])
    assert other["differences"] == {"ingredients.h_images": {"here": 7, "there": 8}}
