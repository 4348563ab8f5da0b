"""`aoq data check` on folders that something is wrong with."""

from __future__ import annotations

import json

import numpy as np
import pytest


@pytest.fixture
def folder(tmp_path):
    """Two splits of thirty images in known words."""
    rng = np.random.default_rng(0)
    for split in ("train", "dev"):
        np.save(tmp_path / f"{split}_ims.npy", rng.standard_normal((30, 2, 8)).astype(np.float32))
        words = [" ".join(rng.choice(["a", "dog", "red", "runs", "big", "cat"], 9)) for _ in range(60)]
        (tmp_path / f"{split}_caps.txt").write_text("".join(f"{text}\n" for text in words))
    return tmp_path


def test_flaws_that_are_not_listed_count(aoq, folder):
    features = np.load(folder / "train_ims.npy")
    features[1:] = features[0]
    features[29] += 1
    np.save(folder / "train_ims.npy", features)
    shown = aoq("data", "check", folder, root=None)
    assert "... and 8 more like this" in shown.stdout
    assert f"{folder} is sound, with 28 warnings" in shown.stdout
    flaws = json.loads(aoq("data", "check", folder, "--json", root=None).stdout)["flaws"]
    assert [flaw["count"] for flaw in flaws] == 20 * [1] + [8]


def test_what_a_split_holds_is_said(aoq, folder):
    shown = aoq("data", "check", folder, root=None)
    dev, train = shown.stdout.splitlines()[:2]
    assert dev.startswith("dev: 30 images × 2 regions × 8 features (float32, median norm ")
    assert train.endswith("60 captions, 2 per image by their order (no train_pairs.npy)")
    splits = json.loads(aoq("data", "check", folder, "--json", root=None).stdout)["splits"]
    assert [(split["split"], split["images"], split["captions"]) for split in splits] == [
        ("dev", 30, 60),
        ("train", 30, 60),
    ]


def test_no_next_step_where_it_would_fail(aoq, folder):
    assert "next: aoq run" in aoq("data", "check", folder, root=None).stderr
    for path in folder.glob("dev_*"):
        path.unlink()
    shown = aoq("data", "check", folder, root=None)
    assert shown.exit_code == 0
    assert shown.stderr == ""


def test_hashes_are_compared_on_request(aoq, folder):
    (folder / "prepared.json").write_text(json.dumps({"sha256": {"dev_caps.txt": "other", "dev_ids.txt": "lost"}}))
    assert aoq("data", "check", folder, root=None).exit_code == 0
    shown = aoq("data", "check", folder, "--full", root=None)
    assert shown.exit_code == 1
    for name in ("dev_caps.txt", "dev_ids.txt"):
        assert f"error: {name}: is not the file that `aoq prepare` wrote" in shown.stdout
