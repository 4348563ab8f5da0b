"""Photographs and captions become a dataset folder that passes its check."""

from __future__ import annotations

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
from aoq.pipeline.prepare import extraction
from aoq.pipeline.prepare.prepare import prepare_folder
from aoq.pipeline.prepare.request import Request
from tests.prepare.conftest import CPU, encoded, picture, write_csv


def test_a_table_of_paths_becomes_a_dataset_folder(photos, prepared):
    folder = prepared(photos)
    assert find_splits(folder) == ["dev", "train"]
    assert examine_folder(folder).flaws == []
    dev = open_split(folder, "dev")
    assert dev.ids == ["00.png", "05.png", "10.png", "15.png"]
    assert dev.captions[2:4] == ["a photograph of 5", "seen from afar of 5"]
    assert dev.image_of.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert dev.features.dtype == np.float16
    assert isinstance(dev.features, np.memmap)


def test_features_are_those_of_each_image_alone(photos, prepared):
    """Features are the mean colour of each quarter of the 4 × 4 image, row by row, times 1, 2, 3."""
    split = open_split(prepared(photos), "train")
    for row, name in enumerate(split.ids):
        pixels = np.asarray(Image.open(photos.parent / name).resize((4, 4), Image.Resampling.NEAREST)) / 255
        quarters = [pixels[y : y + 2, x : x + 2].mean(axis=(0, 1)) * [1, 2, 3] for y in (0, 2) for x in (0, 2)]
        np.testing.assert_allclose(split.features[row], quarters, atol=2e-3)
    assert np.asarray(split.boxes[0]).tolist() == [
        [0.0, 0.0, 0.5, 0.5],
        [0.5, 0.0, 1.0, 0.5],
        [0.0, 0.5, 0.5, 1.0],
        [0.5, 0.5, 1.0, 1.0],
    ]


def test_thumbnails_and_origins_lie_beside(photos, prepared):
    folder = prepared(photos)
    with Image.open(folder / "thumbs" / "05.png") as opened:
        assert opened.size == (12, 8)
    origins = pq.read_table(folder / "dev_images.parquet").to_pylist()
    assert origins[1]["path"] == str(photos.parent / "05.png")
    assert (origins[1]["width"], origins[1]["height"]) == (12, 8)
    about = json.loads((folder / "prepared.json").read_text())
    assert about["splits"]["train"] == {"images": 16, "captions": 32, "copies": 0}


def test_images_can_be_packed(photos, prepared):
    packed = pq.read_table(prepared(photos, pack=True) / "dev_images.parquet").to_pylist()
    assert packed[1]["bytes"] == (photos.parent / "05.png").read_bytes()


def test_pooled_features_are_one_vector_an_image(photos, prepared):
    split = open_split(prepared(photos, tokens="pooled"), "dev")
    assert split.features.shape == (4, 1, 3)
    assert np.asarray(split.boxes[0]).tolist() == [[0.0, 0.0, 1.0, 1.0]]


def test_worker_processes_change_nothing(photos, prepared, tmp_path):
    one = prepared(photos)
    request, two = Request(str(photos), extractor="means:any"), tmp_path / "two"
    from aoq.pipeline.engine import Engine

    prepare_folder(request, two, tmp_path / "work", Engine("cpu", threads=2), batch=5, report=lambda *_: None)
    for path in one.glob("*.*"):
        assert (two / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_killed_run_goes_on_after_its_last_block(photos, prepared, tmp_path, monkeypatch, means):
    whole = prepared(photos)
    monkeypatch.setattr(extraction, "BLOCK_IMAGES", 6)

    class Killed(BaseException):
        pass

    def report(done, total, text):
        if done == 9:
            raise Killed

    request, folder, work = Request(str(photos), extractor="means:any"), tmp_path / "again", tmp_path / "work"
    with pytest.raises(Killed):
        prepare_folder(request, folder, work, CPU, batch=3, report=report)
    means.clear()
    prepare_folder(request, folder, work, CPU, batch=3, report=lambda *_: None)
    assert sum(means) == 20 - 6 + 1  # one blank image tells the extractor's shape
    for path in whole.glob("*.*"):
        assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


def test_another_request_takes_nothing_of_a_killed_one(photos, prepared, tmp_path):
    (photos.parent / "07.png").rename(tmp_path / "07.png")
    with pytest.raises(ValueError, match="cannot be read"):
        prepared(photos)
    (tmp_path / "07.png").rename(photos.parent / "07.png")
    assert open_split(prepared(photos), "train").image_count == 16


def test_images_that_cannot_be_read_are_named_and_can_be_left_out(photos, prepared, means):
    (photos.parent / "07.png").write_bytes(b"")
    (photos.parent / "08.png").write_bytes(b"no image")
    (photos.parent / "09.png").unlink()
    said = (
        r"3 of 20 images cannot be read: \S+07.png is empty; \S+08.png is no JPEG.*; \S+09.png does not exist; .*--skip"
    )
    with pytest.raises(ValueError, match=said):
        prepared(photos)
    means.clear()
    folder = prepared(photos, skip_broken=True)
    assert sum(means) == 1  # nothing is extracted again: a blank image tells the shape
    split = open_split(folder, "train")
    assert split.image_count == 13
    assert not {"07.png", "08.png", "09.png"} & set(split.ids)
    assert split.captions[split.ids.index("11.png") * 2] == "a photograph of 11"


def test_no_image_at_all_is_a_wrong_folder(photos, prepared, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"none of 20 images can be read.*--images"):
        prepared(photos, images=tmp_path / "empty", skip_broken=True)


def test_copies_share_an_identity(photos, prepared, caplog):
    shutil.copy(photos.parent / "01.png", photos.parent / "03.png")
    shutil.copy(photos.parent / "01.png", photos.parent / "05.png")
    folder = prepared(photos)
    assert np.load(folder / "train_identity.npy").tolist() == [0, 1, 0, *range(3, 16)]
    assert "train: 1 images repeat earlier ones" in caplog.text


def test_splits_are_drawn_by_a_seed_and_keep_copies_together(tmp_path, prepared):
    rows = []
    for n in range(30):
        (tmp_path / f"{n}.png").write_bytes(encoded(picture(n // 3)))  # three copies of each
        rows.append([f"{n}.png", f"caption {n}"])
    table = write_csv(tmp_path / "table.csv", ["path", "text"], rows)
    sizes = {"dev": 7, "test": 6}
    with pytest.raises(ValueError, match="dev cannot have 7; try 6"):
        prepared(table, sizes=sizes)
    folder = prepared(table, sizes={"dev": 6, "test": 6}, seed=1)
    ids = {name: [int(i.split(".")[0]) for i in open_split(folder, name).ids] for name in ("train", "dev", "test")}
    assert {name: len(found) for name, found in ids.items()} == {"train": 18, "dev": 6, "test": 6}
    groups = [{n // 3 for n in found} for found in ids.values()]
    assert len(set.union(*groups)) == sum(map(len, groups)) == 10
    again = prepared(table, "again", sizes={"dev": 6, "test": 6}, seed=1)
    assert (again / "dev_ids.txt").read_text() == (folder / "dev_ids.txt").read_text()
    other = prepared(table, "other", sizes={"dev": 6, "test": 6}, seed=2)
    assert (other / "dev_ids.txt").read_text() != (folder / "dev_ids.txt").read_text()


def test_captions_stand_one_a_line_whatever_they_hold(tmp_path, prepared):
    (tmp_path / "a.png").write_bytes(encoded(picture(0)))
    (tmp_path / "b.png").write_bytes(encoded(picture(1)))
    rows = [["a.png", " two\nlines\u2028and \x85 more ", "train"], ["b.png", "", "train"], ["b.png", "b", "train"]]
    folder = prepared(write_csv(tmp_path / "t.csv", ["image", "caption", "split"], rows))
    assert open_split(folder, "train").captions == ["two lines and more", "b"]


IMPORTED = """
import sys, aoq.models
before = {*sys.modules}  # what the package of models imports itself
from aoq.pipeline.cli import main
main(sys.argv[1:], standalone_mode=False)
print(*(name for name in sys.modules if name.startswith("aoq.models.") and name not in before))
"""


def test_the_command_imports_no_model(photos, tmp_path):
    options = ("--tokens", "pooled", "--threads", "1", "--no-thumbnails")
    command = [sys.executable, "-c", IMPORTED, "prepare", str(photos), str(tmp_path / "made"), *options]
    shown = subprocess.run(command, cwd=Path(__file__).parent.parent.parent, capture_output=True, text=True, check=True)
    allowed = {f"aoq.models.towers{module}" for module in ("", ".libraries", ".preprocessing")}
    assert {*shown.stdout.splitlines()[-1].split()} <= allowed
