"""Opening a split: what is seen of good folders, and what is said of bad ones."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.data.folder import find_splits, first_images, open_split, split_fingerprint

Write = Callable[..., Path]


def test_features_stay_on_disk_as_they_are(write_split: Write) -> None:
    split = open_split(write_split(), "train")
    assert isinstance(split.features, np.memmap)
    assert split.features.dtype == np.float16
    assert (split.name, split.image_count, split.caption_count) == ("train", 4, 12)
    assert split.ids == ["0", "1", "2", "3"]
    assert split.boxes is None
    assert split.mask is None


def test_pairs_may_be_in_any_order_and_uneven(write_split: Write) -> None:
    pairs = np.array([3, 0, 0, 1, 2, 2, 2, 0, 1, 3, 0, 2])
    split = open_split(write_split(pairs=pairs), "train")
    own = split.captions_of
    for image in range(split.image_count):
        expected = [caption for caption in range(len(pairs)) if pairs[caption] == image]
        assert own[image].tolist() == expected
        assert own.ids[own.offsets[image] : own.offsets[image + 1]].tolist() == expected
    assert own.most == 4


def test_the_first_images_keep_their_captions(write_split: Write, boxes: np.ndarray) -> None:
    pairs = np.array([3, 0, 0, 1, 2, 2, 2, 0, 1, 3, 0, 2])
    whole = open_split(write_split(pairs=pairs, boxes=boxes), "train")
    cut = first_images(whole, 2)
    rows = [row for row, image in enumerate(pairs) if image < 2]
    assert cut.captions == [whole.captions[row] for row in rows]
    assert cut.image_of.tolist() == [pairs[row] for row in rows]
    assert isinstance(cut.features, np.memmap)
    assert (cut.image_count, len(cut.ids)) == (2, 2)
    assert cut.boxes is not None
    assert len(cut.boxes) == 2
    with pytest.raises(ValueError, match="5 images of split 'train' are asked for, and it has 4"):
        first_images(whole, 5)


def test_optional_files_are_read(write_split: Write, boxes: np.ndarray) -> None:
    mask = np.ones((4, 3), dtype=np.uint8)
    mask[1, 2] = 0
    split = open_split(write_split(ids=["a", "b", "c", "d"], boxes=boxes, mask=mask), "train")
    assert split.ids == ["a", "b", "c", "d"]
    assert split.boxes is not None
    assert split.boxes.shape == (4, 3, 4)
    assert split.mask is not None
    assert split.mask.dtype == np.bool_
    assert split.mask.sum() == 11


def test_captions_are_raw(write_split: Write) -> None:
    lines = ["  Two  Spaces ", "é\u2028stays one line"] + ["x"] * 10
    assert open_split(write_split(caps=lines), "train").captions == lines
    windows = b"\xef\xbb\xbf" + "\r\n".join(["A Dog ."] * 12).encode()
    assert open_split(write_split(caps=windows), "train").captions == ["A Dog ."] * 12


def test_dev_is_never_cut(write_split: Write) -> None:
    folder = write_split("dev", ims=np.zeros((1014, 1, 2), np.float32), caps=["a"] * 5070)
    assert open_split(folder, "dev").image_count == 1014


@pytest.mark.parametrize("with_pairs", [False, True])
@pytest.mark.parametrize("ids", [None, list("abcd"), [letter for letter in "abcd" for _ in range(3)]])
def test_repeated_rows_are_seen_once(
    write_split: Write, boxes: np.ndarray, caplog: pytest.LogCaptureFixture, ids: list[str] | None, with_pairs: bool
) -> None:
    once = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    folder = write_split(
        ims=np.repeat(once, 3, axis=0),
        boxes=np.repeat(boxes, 3, axis=0),
        mask=np.ones((12, 3), bool),
        ids=ids,
        pairs=np.repeat(np.arange(4), 3) if with_pairs else None,
    )
    with caplog.at_level(logging.INFO):
        split = open_split(folder, "train")
    np.testing.assert_array_equal(split.features, once)
    assert isinstance(split.features, np.memmap)
    assert split.features.base is not None
    assert split.boxes is not None
    assert split.boxes.shape == (4, 3, 4)
    assert split.mask is not None
    assert split.mask.shape == (4, 3)
    assert split.ids == (list("abcd") if ids else ["0", "1", "2", "3"])
    assert split.image_of.tolist() == np.repeat(np.arange(4), 3).tolist()
    assert "repeated in 3 rows" in caplog.text


def test_two_equal_images_at_the_start_do_not_hide_the_repetition(write_split: Write) -> None:
    once = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    once[1] = once[0]
    split = open_split(write_split(ims=np.repeat(once, 3, axis=0)), "train")
    assert split.image_count == 4


def test_distinct_ids_say_that_equal_rows_are_different_images(write_split: Write) -> None:
    features = np.repeat(np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32), 3, axis=0)
    assert open_split(write_split(ims=features, ids=[str(row) for row in range(12)]), "train").image_count == 12


def _npy(array: np.ndarray, tmp: Path) -> bytes:
    np.save(tmp / "made.npy", array, allow_pickle=True)
    return (tmp / "made.npy").read_bytes()


BAD = {
    "rank": ({"ims": np.zeros((4, 5), np.float32)}, "shape (images, regions, features)"),
    "no images": ({"ims": np.zeros((0, 3, 5), np.float32)}, "none of them 0"),
    "dtype": ({"ims": np.zeros((4, 3, 5))}, "float32 or float16"),
    "byte order": ({"ims": np.zeros((4, 3, 5), ">f4")}, "byte order"),
    "not npy": ({"ims": b"PK\x03\x04 something else"}, "damaged or not a .npy file"),
    "nothing in it": ({"ims": b""}, "damaged or not a .npy file"),
    "captions left over": ({"caps": ["a"] * 13}, "13 captions for 4 images"),
    "fewer captions than images": ({"caps": ["a"] * 3}, "3 captions for 4 images"),
    "pairs too long": ({"pairs": np.zeros(13, int)}, "shape (12,)"),
    "pairs of floats": ({"pairs": np.zeros(12)}, "integer"),
    "pairs below 0": ({"pairs": np.array([0, 1, 2, 3, -1] + [0] * 7)}, "entry 4 is -1"),
    "pairs beyond 32 bits": ({"pairs": np.array([2**32, 1, 2, 3] * 3)}, "entry 0 is 4294967296"),
    "pairs out of range": ({"pairs": np.array([0, 1, 2, 3, 4] + [0] * 7)}, "caption 5 is paired with image 4"),
    "image without caption": ({"pairs": np.array([0, 1, 3] * 4)}, "1 of 4 images have no caption (first rows [2])"),
    "mask shape": ({"mask": np.ones((4, 2), bool)}, "(4, 3)"),
    "mask of other numbers": ({"mask": np.full((4, 3), 2)}, "True and False"),
    "mask of texts": ({"mask": np.full((4, 3), "1")}, "True and False"),
    "mask of dates": ({"mask": np.ones((4, 3), "M8[s]")}, "True and False"),
    "boxes shape": ({"boxes": np.zeros((4, 3, 2), np.float32)}, "(4, 3, 4)"),
    "boxes of integers": ({"boxes": np.zeros((4, 3, 4), int)}, "float"),
    "ids do not fit": ({"ids": ["a", "b"]}, "2 ids for 4 images"),
    "undecodable caption": ({"caps": b"good\nbad \xff\n" + b"good\n" * 10}, "train_caps.txt:2: byte 5 (0xff)"),
    "empty caption": ({"caps": ["good", "", *["good"] * 10]}, "train_caps.txt:2: the line is empty"),
    "blank caption": ({"caps": ["good", "\u3000", *["good"] * 10]}, "train_caps.txt:2: the line is empty"),
    "no caption": ({"caps": b"\n"}, "empty"),
    "empty id": ({"ids": ["a", "b", "", "d"]}, "train_ids.txt:3: the line is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(write_split: Write, case: str) -> None:
    files, message = BAD[case]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        open_split(write_split(**files), "train")
    assert "train_" in str(caught.value)


def test_truncated_array_is_refused(write_split: Write) -> None:
    folder = write_split()
    os.truncate(folder / "train_ims.npy", 200)
    with pytest.raises(ValueError, match=r"train_ims.npy is damaged .* takes 120 bytes, and 72 are there"):
        open_split(folder, "train")


def test_objects_are_never_unpickled(write_split: Write, tmp_path: Path) -> None:
    content = _npy(np.array([{"a": 1}], dtype=object), tmp_path)
    with pytest.raises(ValueError, match="it holds Python objects"):
        open_split(write_split(ims=content), "train")
    with pytest.raises(ValueError, match="it holds Python objects"):
        open_split(write_split(pairs=content), "train")


def test_what_is_no_file_or_may_not_be_read_is_named(write_split: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_split()
    (folder / "train_pairs.npy").mkdir()
    with pytest.raises(ValueError, match=r"train_pairs.npy is damaged .*it is a folder"):
        open_split(folder, "train")
    (folder / "train_pairs.npy").rmdir()
    (folder / "train_caps.txt").unlink()
    (folder / "train_caps.txt").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"train_caps.txt is damaged .*it is no regular file"):
        open_split(folder, "train")

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match=r"train_ims.npy may not be read \(permission denied\)"):
        open_split(folder, "train")


def test_a_missing_file_is_said_with_what_is_there(write_split: Write) -> None:
    folder = write_split("train")
    with pytest.raises(FileNotFoundError, match=r"'dev' needs dev_ims.npy and dev_caps.txt.*Splits there: train"):
        open_split(folder, "dev")
    (folder / "train_ims.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"needs train_ims.npy; the folder holds train_caps.txt"):
        open_split(folder, "train")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        open_split(folder / "elsewhere", "train")


def test_find_splits(write_split: Write) -> None:
    write_split("dev")
    assert find_splits(write_split("train")) == ["dev", "train"]


def test_fingerprint_survives_a_copy(write_split: Write, boxes: np.ndarray, tmp_path: Path) -> None:
    folder = write_split(boxes=boxes)
    before = split_fingerprint(folder, "train")
    (folder / "other.txt").write_text("not of the split")
    copy = shutil.copytree(folder, tmp_path / "copy")
    os.utime(copy / "train_ims.npy", (0, 0))
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert split_fingerprint(copy, "train") == before == split_fingerprint(folder, "train")


@pytest.mark.parametrize(
    "files",
    [
        {"ims": np.full((4, 3, 5), 2.0, np.float16)},
        {"caps": ["Another"] * 12},
        {"ids": ["a", "b", "c", "e"]},
        {"boxes": np.zeros((4, 3, 4), np.float32)},
        {"mask": np.ones((4, 3), np.bool_)},
        {"pairs": np.repeat(np.arange(4), 3)},
    ],
    ids=lambda files: next(iter(files)),
)
def test_fingerprint_sees_every_file(write_split: Write, files: dict[str, object]) -> None:
    before = split_fingerprint(write_split(), "train")
    assert split_fingerprint(write_split(**files), "train") != before


def test_fingerprint_of_a_large_array_sees_its_ends_and_length(write_split: Write) -> None:
    features = np.zeros((512, 10, 256), np.float32)
    seen = set()
    for position in [None, (0, 0, 0), (-1, -1, -1)]:
        changed = features.copy()
        if position is not None:
            changed[position] = 1.0
        seen.add(split_fingerprint(write_split(ims=changed, caps=["a"] * 512), "train"))
    seen.add(split_fingerprint(write_split(ims=features[:-1], caps=["a"] * 512), "train"))
    assert len(seen) == 4


def test_scheduling_imports_neither_torch_nor_nltk() -> None:
    modules = "aoq.pipeline.data.folder, aoq.pipeline.data.check, aoq.pipeline.data.tokens, aoq.pipeline.data.demo"
    check = f"import sys, {modules}; sys.exit(bool({{'torch', 'nltk'}} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
