"""`aoq prepare` and `aoq data check` as people type them."""

import json
import sys

import numpy as np
import pytest

from tests.cli.conftest import run
from tests.prepare.conftest import encoded, picture, write_csv


@pytest.fixture
def photos(tmp_path):
    for n in range(5):
        (tmp_path / f"{n}.jpg").write_bytes(encoded(picture(n, 40, 30), "JPEG"))
    rows = [[f"{n}.jpg", f"caption {n}", "train" if n > 1 else "dev"] for n in range(5)]
    return write_csv(tmp_path / "photos.csv", ["file_name", "caption", "split"], rows)


def test_a_folder_is_prepared_refused_and_replaced(photos, tmp_path):
    folder = tmp_path / "data" / "mine"
    folder.parent.mkdir()
    command = ["prepare", photos, folder, "--threads", 1, "--tokens", "pooled"]
    said = run(*command).output
    assert "train: 3 images, 3 captions" in said
    assert "1 × 1280 features per image by efficientnet-lite0" in said
    assert "is sound" in run("data", "check", folder).output
    before = (folder / "train_ims.npy").stat().st_ino
    refused = run(*command, code=1).stderr
    assert "exists already; choose another name, or replace it with --overwrite" in refused
    assert (folder / "train_ims.npy").stat().st_ino == before
    run(*command, "--overwrite")
    assert (folder / "train_ims.npy").stat().st_ino != before
    assert [path.name for path in folder.parent.iterdir()] == ["mine"]


def test_images_that_get_no_thumbnail_are_counted(photos, tmp_path, caplog):
    (tmp_path / "lists").mkdir()
    rows = [[tmp_path / f"{n}.jpg", f"caption {n}", "train" if n else "dev"] for n in range(4)]
    elsewhere = write_csv(tmp_path / "lists" / "photos.csv", ["file_name", "caption", "split"], rows)
    for source, without in ((photos, False), (elsewhere, True)):
        run("prepare", source, tmp_path / f"made_{without}", "--threads", 1, "--tokens", "pooled")
        assert ("4 images have no thumbnail: their paths are absolute" in caplog.text) is without


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--image-column", "nothing"], "there is no column 'nothing'; the columns are file_name, caption, split."),
        (["--extractor", "nothing"], "there is no extractor 'nothing'; known are efficientnet-lite0"),
        (["--split-sizes", "dev"], "write dev=1000,test=1000"),
        (["--split-sizes", "dev=5"], "asks for 5 of 5 images"),
        (["--images", "/nowhere"], "there is no folder /nowhere"),
    ],
)
def test_mistakes_are_one_sentence_and_leave_nothing(photos, tmp_path, arguments, sentence):
    assert sentence in run("prepare", photos, tmp_path / "made", *arguments, code=1).stderr
    assert not (tmp_path / "made").exists()


def test_without_ray_it_says_what_to_install(photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = run("prepare", photos, tmp_path / "made", "--backend", "ray", code=1).stderr
    assert 'pip install "aoq[ray]"' in said
    assert sorted(path.name for path in tmp_path.iterdir() if "made" in path.name) == []


def test_a_parent_is_made_and_what_was_extracted_is_kept_in_it(photos, tmp_path):
    folder = tmp_path / "data" / "mine"
    (tmp_path / "2.jpg").write_bytes(b"")
    run("prepare", photos, folder, "--threads", 1, code=1)
    assert [path.name for path in folder.parent.iterdir()] == [".mine.work"]


@pytest.fixture
def folder(tmp_path):
    """Two splits of thirty images in known words."""
    rng = np.random.default_rng(0)
    for split in ("train", "dev"):
        np.save(tmp_path / f"{split}_ims.npy", rng.standard_normal((30, 2, 8)).astype(np.float32))
        words = [" ".join(rng.choice(["a", "dog", "red", "runs", "big", "cat"], 9)) for _ in range(60)]
        (tmp_path / f"{split}_caps.txt").write_text("".join(f"{text}\n" for text in words))
    return tmp_path


def test_flaws_that_are_not_listed_count(folder):
    features = np.load(folder / "train_ims.npy")
    features[1:] = features[0]
    features[29] += 1
    np.save(folder / "train_ims.npy", features)
    shown = run("data", "check", folder)
    assert "... and 8 more like this" in shown.stdout
    assert f"{folder} is sound, with 28 warnings" in shown.stdout
    found = json.loads(run("data", "check", folder, "--json").stdout)
    assert [flaw["count"] for flaw in found["flaws"]] == 20 * [1] + [8]
    sizes = [(one["split"], one["images"], one["captions"]) for one in found["splits"]]
    assert sizes == [("dev", 30, 60), ("train", 30, 60)]


def test_no_next_step_where_it_would_fail(folder):
    assert "next: aoq run" in run("data", "check", folder).stderr
    for path in folder.glob("dev_*"):
        path.unlink()
    shown = run("data", "check", folder)
    assert shown.stderr == ""


def test_hashes_are_compared_on_request(folder):
    (folder / "prepared.json").write_text(json.dumps({"sha256": {"dev_caps.txt": "other", "dev_ids.txt": "lost"}}))
    run("data", "check", folder)
    shown = run("data", "check", folder, "--full", code=1)
    for name in ("dev_caps.txt", "dev_ids.txt"):
        assert f"error: {name}: has changed since `aoq prepare` wrote it" in shown.stdout
