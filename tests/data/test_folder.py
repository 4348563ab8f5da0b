"""Opening a split: good folders are read, bad ones are refused with the reason."""

import logging
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.data.folder import first_images, open_split, split_fingerprint

PAIRS = np.array([3, 0, 0, 1, 2, 2, 2, 0, 1, 3, 0, 2])


def test_required_and_optional_files_are_read(write_split, boxes):
    split = open_split(write_split(), "train")
    assert isinstance(split.features, np.memmap)
    assert split.features.dtype == np.float16
    assert (split.name, split.image_count, split.caption_count) == ("train", 4, 12)
    assert (split.ids, split.boxes, split.mask) == (["0", "1", "2", "3"], None, None)
    mask = np.ones((4, 3), dtype=np.uint8)
    mask[1, 2] = 0
    split = open_split(write_split(ids=["a", "b", "c", "d"], boxes=boxes, mask=mask), "train")
    assert split.ids == ["a", "b", "c", "d"]
    assert split.boxes.shape == (4, 3, 4)
    assert (split.mask.dtype, split.mask.sum()) == (np.bool_, 11)


def test_pairs_may_be_in_any_order_and_uneven(write_split):
    split = open_split(write_split(pairs=PAIRS), "train")
    own = split.captions_of
    for image in range(split.image_count):
        expected = np.flatnonzero(image == PAIRS).tolist()
        assert own[image].tolist() == expected
        assert own.ids[own.offsets[image] : own.offsets[image + 1]].tolist() == expected
    assert own.most == 4


def test_the_first_images_keep_their_captions(write_split, boxes):
    whole = open_split(write_split(pairs=PAIRS, boxes=boxes), "train")
    cut, rows = first_images(whole, 2), np.flatnonzero(PAIRS < 2)
    assert cut.captions == [whole.captions[row] for row in rows]
    assert cut.image_of.tolist() == PAIRS[rows].tolist()
    assert isinstance(cut.features, np.memmap)
    assert (cut.image_count, len(cut.ids), len(cut.boxes)) == (2, 2, 2)
    with pytest.raises(ValueError, match="5 images of split 'train' are requested, but it has 4"):
        first_images(whole, 5)


def test_captions_are_raw(write_split):
    lines = ["  Two  Spaces ", "é\u2028stays one line"] + ["x"] * 10
    assert open_split(write_split(caps=lines), "train").captions == lines
    windows = b"\xef\xbb\xbf" + "\r\n".join(["A Dog ."] * 12).encode()
    assert open_split(write_split(caps=windows), "train").captions == ["A Dog ."] * 12


@pytest.mark.parametrize(
    ("ids", "with_pairs", "start"),
    [(None, False, 1), (list("abcd"), True, 0), ([letter for letter in "abcd" for _ in range(3)], False, 0)],
)
def test_repeated_rows_are_read_once(write_split, boxes, caplog, ids, with_pairs, start):
    """Two equal images at the start do not hide the repetition."""
    once = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    once[start] = once[0]
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
    assert (split.boxes.shape, split.mask.shape) == ((4, 3, 4), (4, 3))
    assert split.ids == (list("abcd") if ids else ["0", "1", "2", "3"])
    assert split.image_of.tolist() == np.repeat(np.arange(4), 3).tolist()
    assert "repeated in 3 rows" in caplog.text


def test_equal_rows_with_distinct_ids_are_different_images(write_split):
    features = np.repeat(np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32), 3, axis=0)
    assert open_split(write_split(ims=features, ids=[str(row) for row in range(12)]), "train").image_count == 12


BAD = {
    "rank": ({"ims": np.zeros((4, 5), np.float32)}, "shape (images, regions, features)"),
    "no images": ({"ims": np.zeros((0, 3, 5), np.float32)}, "none of them 0"),
    "dtype": ({"ims": np.zeros((4, 3, 5))}, "float32 or float16"),
    "byte order": ({"ims": np.zeros((4, 3, 5), ">f4")}, "byte order"),
    "not npy": ({"ims": b"PK\x03\x04 something else"}, "damaged or not a .npy file"),
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
    "boxes shape": ({"boxes": np.zeros((4, 3, 2), np.float32)}, "(4, 3, 4)"),
    "boxes of integers": ({"boxes": np.zeros((4, 3, 4), int)}, "float"),
    "ids do not fit": ({"ids": ["a", "b"]}, "2 ids for 4 images"),
    "undecodable caption": ({"caps": b"good\nbad \xff\n" + b"good\n" * 10}, "train_caps.txt:2: byte 5 (0xff)"),
    "empty caption": ({"caps": ["good", "", *["good"] * 10]}, "train_caps.txt:2: the line is empty"),
    "no caption": ({"caps": b"\n"}, "empty"),
    "empty id": ({"ids": ["a", "b", "", "d"]}, "train_ids.txt:3: the line is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused(write_split, case):
    files, message = BAD[case]
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        open_split(write_split(**files), "train")
    assert "train_" in str(refusal.value)


def test_hostile_files_are_refused(write_split, tmp_path, monkeypatch):
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for kind in ("ims", "pairs"):
        with pytest.raises(ValueError, match="it holds Python objects"):
            open_split(write_split(**{kind: (tmp_path / "objects.npy").read_bytes()}), "train")
        (tmp_path / "train_pairs.npy").unlink(missing_ok=True)
    folder = write_split()
    (folder / "train_pairs.npy").mkdir()
    with pytest.raises(ValueError, match=r"train_pairs.npy is damaged .*it is a folder"):
        open_split(folder, "train")
    (folder / "train_pairs.npy").rmdir()
    os.truncate(folder / "train_ims.npy", 200)
    with pytest.raises(ValueError, match=r"train_ims.npy is damaged .* takes 120 bytes, but the file has 72"):
        open_split(folder, "train")
    (write_split() / "train_caps.txt").unlink()
    (folder / "train_caps.txt").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"train_caps.txt is damaged .*it is not a regular file"):
        open_split(folder, "train")

    def refuse(path: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError, match=r"train_ims.npy cannot be read \(permission denied\)"):
        open_split(folder, "train")


def test_a_missing_file_is_named_beside_the_present_ones(write_split):
    folder = write_split("train")
    with pytest.raises(FileNotFoundError, match=r"'dev' needs dev_ims.npy and dev_caps.txt.*Splits there: train"):
        open_split(folder, "dev")
    (folder / "train_ims.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"needs train_ims.npy; the folder holds train_caps.txt"):
        open_split(folder, "train")
    with pytest.raises(FileNotFoundError, match="no such folder"):
        open_split(folder / "elsewhere", "train")


def test_the_fingerprint_survives_a_copy_and_changes_with_every_file(write_split, boxes, tmp_path):
    folder = write_split(boxes=boxes)
    before = split_fingerprint(folder, "train")
    (folder / "other.txt").write_text("not of the split")
    copy = shutil.copytree(folder, tmp_path / "copy")
    os.utime(copy / "train_ims.npy", (0, 0))
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert split_fingerprint(copy, "train") == before == split_fingerprint(folder, "train")
    changes = {
        "ims": np.full((4, 3, 5), 2.0, np.float16),
        "caps": ["Another"] * 12,
        "ids": ["a", "b", "c", "e"],
        "boxes": np.zeros((4, 3, 4), np.float32),
        "mask": np.ones((4, 3), np.bool_),
        "pairs": np.repeat(np.arange(4), 3),
    }
    prints = [split_fingerprint(write_split(**dict([change])), "train") for change in changes.items()]
    assert len({before, *prints}) == 7


def test_the_fingerprint_of_a_large_array_covers_its_ends_and_length(write_split):
    features = np.zeros((512, 10, 256), np.float32)
    prints = set()
    for position in [None, (0, 0, 0), (-1, -1, -1)]:
        changed = features.copy()
        if position is not None:
            changed[position] = 1.0
        prints.add(split_fingerprint(write_split(ims=changed, caps=["a"] * 512), "train"))
    prints.add(split_fingerprint(write_split(ims=features[:-1], caps=["a"] * 512), "train"))
    assert len(prints) == 4
