"""Photographs and captions become a dataset folder that passes its check."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.folder import find_splits, open_split
from aoq.pipeline.engine import Engine
from tests.prepare.conftest import contents, encoded, picture, write_csv


def test_a_table_of_paths_becomes_a_dataset_folder(photos, prepared):
    folder = prepared(photos)
    assert find_splits(folder) == ["dev", "train"]
    assert examine_folder(folder).flaws == []
    dev = open_split(folder, "dev")
    assert dev.ids == ["00.png", "05.png", "10.png", "15.png"]
    assert dev.captions[2:4] == ["a photograph of 5", "seen from afar of 5"]
    assert dev.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert dev.features.dtype == np.float16
    with Image.open(folder / "thumbs" / "05.png") as opened:
        assert opened.size == (12, 8)
    origin = pq.read_table(folder / "dev_images.parquet").to_pylist()[1]
    assert (origin["path"], origin["width"], origin["height"]) == (str(photos.parent / "05.png"), 12, 8)
    about = json.loads((folder / "prepared.json").read_text())
    assert about["splits"]["train"] == {"images": 16, "captions": 32, "copies": 0}


def test_features_are_those_of_each_image_alone(photos, prepared):
    """Features are the mean colour of each quarter of the 4 × 4 image, row by row, times 1, 2, 3; or their mean."""
    split = open_split(prepared(photos), "train")
    pooled = open_split(prepared(photos, "pooled", tokens="pooled"), "train")
    for row, name in enumerate(split.ids):
        pixels = np.asarray(Image.open(photos.parent / name).resize((4, 4), Image.Resampling.NEAREST)) / 255
        quarters = [pixels[y : y + 2, x : x + 2].mean(axis=(0, 1)) * [1, 2, 3] for y in (0, 2) for x in (0, 2)]
        np.testing.assert_allclose(split.features[row], quarters, atol=2e-3)
        np.testing.assert_allclose(pooled.features[row], np.mean(quarters, axis=0)[None], atol=2e-3)
    corners = [[0.0, 0.0, 0.5, 0.5], [0.5, 0.0, 1.0, 0.5], [0.0, 0.5, 0.5, 1.0], [0.5, 0.5, 1.0, 1.0]]
    assert np.asarray(split.boxes[0]).tolist() == corners
    assert np.asarray(pooled.boxes[0]).tolist() == [[0.0, 0.0, 1.0, 1.0]]


def test_worker_processes_change_nothing(photos, prepared):
    assert contents(prepared(photos, "two", engine=Engine("cpu", threads=2), batch=5)) == contents(prepared(photos))


def test_unreadable_images_are_named_and_can_be_left_out(photos, prepared, means):
    removed = photos.parent / "09.png"
    content = removed.read_bytes()
    (photos.parent / "07.png").write_bytes(b"")
    (photos.parent / "08.png").write_bytes(b"no image")
    removed.unlink()
    with pytest.raises(
        ValueError, match=r"1 of 20 images do not exist, such as \S+09.png; give the folder .* --images, .*--skip"
    ):
        prepared(photos)
    assert not means  # nothing was extracted before
    removed.write_bytes(b"none")
    message = r"3 of 20 images cannot be read: \S+07.png is empty; \S+08.png is not JPEG.*; \S+09.png is not JPEG.*; "
    with pytest.raises(ValueError, match=message + ".*--skip"):
        prepared(photos)
    means.clear()
    folder = prepared(photos, skip_broken=True)
    assert sum(means) == 1  # nothing is extracted again: a blank image tells the shape
    split = open_split(folder, "train")
    assert split.image_count == 13
    assert not {"07.png", "08.png", "09.png"} & set(split.ids)
    assert split.captions[split.ids.index("11.png") * 2] == "a photograph of 11"
    removed.write_bytes(content)  # another request, which takes nothing of the last one
    assert open_split(prepared(photos, skip_broken=True), "train").image_count == 14


def test_no_image_at_all_is_a_wrong_folder(photos, prepared, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"20 of 20 images do not exist, such as \S+00.png.*--images"):
        prepared(photos, images=str(tmp_path / "empty"), skip_broken=True)


def test_copies_share_an_identity(photos, prepared, caplog):
    shutil.copy(photos.parent / "01.png", photos.parent / "03.png")
    assert np.load(prepared(photos) / "train_identity.npy").tolist() == [0, 1, 0, *range(3, 16)]
    assert "train: 1 images repeat earlier ones" in caplog.text
    assert "a leak" not in caplog.text
    shutil.copy(photos.parent / "01.png", photos.parent / "05.png")
    prepared(photos, "leaking")
    assert "dev: 1 images are in train too, the first is image 1 (2 of train): a leak" in caplog.text


def test_splits_are_drawn_by_a_seed_and_keep_copies_together(tmp_path, prepared):
    rows = []
    for n in range(30):
        (tmp_path / f"{n}.png").write_bytes(encoded(picture(n // 3)))  # three copies of each
        rows.append([f"{n}.png", f"caption {n}"])
    table = write_csv(tmp_path / "table.csv", ["path", "text"], rows)
    for few, remedy in ((3, "add some: each split needs two"), (9, "say how many: --split-sizes dev=2")):
        with pytest.raises(ValueError, match=f"{few} images are too few to draw dev and test from; {remedy}"):
            prepared(write_csv(tmp_path / "few.csv", ["path", "text"], rows[:few]))
    with pytest.raises(ValueError, match="dev cannot have 7; try 6"):
        prepared(table, split_sizes={"dev": 7, "test": 6})
    drawn = {}
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        folder = prepared(table, name, split_sizes={"dev": 6, "test": 6}, seed=seed)
        drawn[name] = [[int(i.split(".")[0]) for i in open_split(folder, s).ids] for s in ("train", "dev", "test")]
    assert [len(ids) for ids in drawn["one"]] == [18, 6, 6]
    groups = [{n // 3 for n in ids} for ids in drawn["one"]]
    assert len(set.union(*groups)) == sum(map(len, groups)) == 10
    assert drawn["again"] == drawn["one"] != drawn["other"]
    mixed = [[*row, "restval" if n < 9 else "train"] for n, row in enumerate(rows)]
    table = write_csv(tmp_path / "mixed.csv", ["path", "text", "split"], mixed)
    folder = prepared(table, "less", split_sizes={"dev": 6}, restval="drop")
    assert [open_split(folder, split).image_count for split in ("train", "dev")] == [15, 6]


def test_captions_are_one_line_each(tmp_path, prepared):
    (tmp_path / "a.png").write_bytes(encoded(picture(0)))
    (tmp_path / "b.png").write_bytes(encoded(picture(1)))
    rows = [["a.png", " two\nlines\u2028and \x85 more ", "train"], ["b.png", "", "train"], ["b.png", "b", "train"]]
    folder = prepared(write_csv(tmp_path / "t.csv", ["image", "caption", "split"], rows))
    assert open_split(folder, "train").captions == ["two lines and more", "b"]


def test_prepare_and_embed_continue_after_kills(clip, tmp_path):
    """Killed at any instant, the same command again ends at the same bytes; a run can be killed in either split."""
    rows = []
    for n in range(60):
        (tmp_path / f"{n:03}.jpg").write_bytes(encoded(picture(n, 90, 60), "JPEG"))
        rows += [[f"{n:03}.jpg", f"a photograph of {n} {place}", "dev" if n % 4 == 0 else "train"] for place in "ab"]
    photos = write_csv(tmp_path / "photos.csv", ["file_name", "caption", "split"], rows)
    command = [sys.executable, "-m", "tests.prepare.kills", tmp_path, photos, f"transformers:{clip[2]}"]
    root = Path(__file__).parent.parent.parent
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
