"""Every flaw of a folder is reported, each once, all at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.data import check
from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.flaws import MOST_OF_A_KIND, Flaw, total

Write = Callable[..., Path]


def features(seed: int = 0, rows: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 3, 5)).astype(np.float32)


def the_one(folder: Path) -> Flaw:
    (flaw,) = examine_folder(folder).flaws
    return flaw


def test_regions_of_another_size_than_trains(write_split: Write) -> None:
    write_split("test", ims=features()[:, :, :4])
    flaw = the_one(write_split("train"))
    assert (flaw.file, flaw.severity) == ("test_ims.npy", "error")
    assert flaw.message.startswith("has regions of 4 features, and train's have 5;")


def test_folder_without_a_split(tmp_path: Path) -> None:
    assert "no split" in the_one(tmp_path).message
    assert "no split" in the_one(tmp_path / "elsewhere").message


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_broken_rows(write_split: Write, row: int, value: float) -> None:
    spoiled = features()
    spoiled[row, 1, 1] = value
    flaw = the_one(write_split(ims=spoiled))
    assert (flaw.file, flaw.row, flaw.severity) == ("train_ims.npy", row, "error")
    assert "NaN" in flaw.message


def test_rows_are_numbered_across_blocks(write_split: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "BLOCK_BYTES", 2 * features()[0].nbytes)
    spoiled = features(rows=12)
    spoiled[7] = np.nan
    assert the_one(write_split(ims=spoiled)).row == 7


def test_every_bad_line_is_named(write_split: Write) -> None:
    caps = b"good\n\nbad \xff\n" + b"".join(b"good %d\n" % n for n in range(8)) + b" \n"
    flaws = examine_folder(write_split(caps=caps, ids=["a", "", "c", "d"])).flaws
    assert [(flaw.file, flaw.line) for flaw in flaws] == [
        ("train_caps.txt", 2),
        ("train_caps.txt", 3),
        ("train_caps.txt", 12),
        ("train_ids.txt", 2),
    ]
    assert "0xff" in flaws[1].message


def test_equal_images_and_ids(write_split: Write) -> None:
    twice = features()
    twice[3] = twice[1]
    flaws = examine_folder(write_split(ims=twice, ids=["a", "b", "c", "a"])).flaws
    assert [(flaw.file, flaw.row, flaw.line, flaw.severity) for flaw in flaws] == [
        ("train_ims.npy", 3, None, "warning"),
        ("train_ids.txt", None, 4, "warning"),
    ]


def test_copies_are_said_with_their_harm_unless_they_are_numbered(write_split: Write) -> None:
    twice = features()
    twice[3] = twice[1]
    assert the_one(write_split(ims=twice)).message == (
        "has the features of row 1, and each counts as the other's negative; give both one number in "
        "train_identity.npy, or remove one"
    )
    assert examine_folder(write_split(ims=twice, identity=np.array([0, 1, 2, 1]))).flaws == []
    assert the_one(write_split(ims=twice, identity=np.array([0, 1, 0, 2]))).row == 3


def test_broken_rows_are_no_copies_and_no_leak(write_split: Write) -> None:
    spoiled = features()
    spoiled[1:3] = np.inf
    write_split("dev", ims=spoiled)
    flaws = examine_folder(write_split(ims=spoiled + features(1))).flaws
    assert [(flaw.file, flaw.row, flaw.severity) for flaw in flaws] == [
        (f"{split}_ims.npy", row, "error") for split in ("dev", "train") for row in (1, 2)
    ]


def test_images_of_train_elsewhere_are_a_leak(write_split: Write) -> None:
    other = features(1)
    other[2] = features()[3]
    write_split("dev", ims=other, ids=["w", "a", "y", "z"])
    write_split("test", ims=other, ids=["1", "2", "3", "4"])
    flaws = examine_folder(write_split(ims=features(), ids=list("abcd"))).flaws
    assert [(flaw.file, flaw.row, flaw.line) for flaw in flaws] == [
        ("dev_ims.npy", 2, None),
        ("dev_ids.txt", None, 2),
        ("test_ims.npy", 2, None),
    ]
    assert all("leak" in flaw.message and flaw.severity == "warning" for flaw in flaws)


def test_repetition_that_breaks_is_an_error(write_split: Write) -> None:
    repeated = np.repeat(features(rows=100), 3, axis=0)
    repeated[3 * 50 + 2] += 1.0
    flaw = the_one(write_split(ims=repeated, caps=[*map(str, range(300))]))
    assert (flaw.row, flaw.severity) == (152, "error")


@pytest.mark.parametrize(
    ("box", "row"),
    [((-0.1, 0.0, 1.0, 1.0), 0), ((0.0, 0.0, 1.0, 1.1), 3), ((0.5, 0, 0.4, 1), 1), ((0, np.nan, 1, 1), 2)],
)
def test_bad_boxes(write_split: Write, boxes: np.ndarray, box: tuple[float, ...], row: int) -> None:
    boxes[row, 1] = box
    flaw = the_one(write_split(boxes=boxes))
    assert (flaw.file, flaw.row, flaw.severity) == ("train_boxes.npy", row, "error")


def test_image_of_masked_regions_only(write_split: Write) -> None:
    mask = np.ones((4, 3), bool)
    mask[2] = False
    flaw = the_one(write_split(mask=mask))
    assert (flaw.file, flaw.row, flaw.severity) == ("train_mask.npy", 2, "error")


def test_missing_thumbs(write_split: Write) -> None:
    folder = write_split(ids=["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
    (folder / "thumbs").mkdir()
    for name in ("a.jpg", "c.jpg", "unknown.jpg"):
        (folder / "thumbs" / name).touch()
    flaws = examine_folder(folder).flaws
    assert [flaw.file for flaw in flaws] == ["thumbs/b.jpg", "thumbs/d.jpg"]
    assert {flaw.severity for flaw in flaws} == {"warning"}


def test_missing_files(write_split: Write) -> None:
    folder = write_split()
    (folder / "train_ims.npy").unlink()
    assert (the_one(folder).file, the_one(folder).severity) == ("train_ims.npy", "error")
    (write_split("dev") / "dev_caps.txt").unlink()
    assert [flaw.file for flaw in examine_folder(folder).flaws] == ["dev_caps.txt", "train_ims.npy"]


def test_everything_is_said_at_once(write_split: Write) -> None:
    spoiled = features()
    spoiled[1] = np.nan
    folder = write_split(
        ims=spoiled,
        caps=["a"] * 12 + [""],
        ids=["a"],
        boxes=np.zeros((4, 3), np.float32),
        mask=np.zeros((1, 3), bool),
        pairs=np.zeros(12),
    )
    write_split("dev", ims=np.zeros((4, 5), np.float32))
    assert sorted((flaw.file, flaw.line, flaw.row) for flaw in examine_folder(folder).flaws if flaw.row is None)
    assert [str(flaw).split(": ")[1] for flaw in examine_folder(folder).flaws] == [
        "dev_ims.npy",
        "train_caps.txt:13",
        "train_pairs.npy",
        "train_ids.txt",
        "train_ims.npy[1]",
        "train_boxes.npy",
        "train_mask.npy",
    ]
    assert not any(str(folder) in flaw.message for flaw in examine_folder(folder).flaws)


def test_captions_that_do_not_divide(write_split: Write) -> None:
    flaw = the_one(write_split(caps=[*map(str, range(13))]))
    assert flaw.file == "train_caps.txt"
    assert "13 captions for 4 images" in flaw.message
    assert "train_pairs.npy" in flaw.message


def test_captions_that_several_images_share(write_split: Write) -> None:
    other = [f"Caption {caption}" for caption in range(10)]
    write_split("train", caps=["a dog", "a dog", *other])  # both of one image
    flaw = the_one(write_split("dev", caps=[*other, *other[:2]]))
    assert (flaw.file, flaw.severity) == ("dev_caps.txt", "warning")
    assert flaw.message == "4 of 12 captions have the text of another image's; recalls count these as wrong"
    flaw = examine_folder(write_split("train", caps=[*other, *other[:2]])).flaws[-1]
    assert flaw.message.endswith("; these are false negatives, which [screen] same_text = true leaves out")


def test_images_without_features_are_neither_copies_nor_a_leak(write_split: Write) -> None:
    empty = features()
    empty[1:3] = 0
    write_split("dev", ims=empty)
    flaws = examine_folder(write_split(ims=empty + features(1) * (empty != 0))).flaws
    assert [(flaw.file, flaw.row, flaw.message.split(";")[0]) for flaw in flaws] == [
        (f"{split}_ims.npy", row, "holds zeros alone") for split in ("dev", "train") for row in (1, 2)
    ]


def test_many_flaws_of_a_kind_are_counted(write_split: Write) -> None:
    broken = features(rows=40)
    broken[:, 0, 0] = np.nan
    flaws = examine_folder(write_split(ims=broken, caps=[*map(str, range(40))])).flaws
    errors = [flaw for flaw in flaws if flaw.severity == "error"]
    assert len(errors) == MOST_OF_A_KIND + 1
    assert errors[-1].message == "... and 20 more like this"
    assert errors[-1].row is None
    assert total(flaws, "error") == 40


def test_annotations_that_do_not_fit(write_split: Write) -> None:
    folder = write_split("dev")
    (folder / "dev_relevance_eccv.csv").write_text("caption_id,image_id\n0,0\n")
    assert examine_folder(folder).flaws == []
    (folder / "dev_relevance_eccv.csv").write_text("caption_id,image_id\n0,9\n")
    flaw = the_one(folder)
    assert flaw.file == "dev_relevance_eccv.csv"
    assert "image_id 9 to 9" in flaw.message
    (folder / "dev_relevance_eccv.parquet").write_bytes(b"")
    assert "hold the same annotation; remove one" in the_one(folder).message


@pytest.mark.parametrize(
    ("change", "file", "words"),
    [
        ({"ims": features(rows=1), "caps": b"one\ntwo\n"}, "train_ims.npy", "one image, so no pair has a negative"),
        ({"ims": np.ones((4, 3, 5), np.float32)}, "train_ims.npy", "the same features for every image"),
        ({"ims": features() * 0}, "train_ims.npy", "the same features for every image"),  # of both signs
        ({"caps": b"a dog runs\n" * 8}, "train_caps.txt", "the same caption for every image"),
        (
            {"caps": b"a dog runs\nA dog runs\na dog  runs .\nA DOG runs.\n"},
            "train_caps.txt",
            "the same caption for every image",
        ),
    ],
)
def test_data_without_a_difference_are_refused(write_split: Write, change: dict, file: str, words: str) -> None:
    flaw = the_one(write_split(**change))
    assert (flaw.file, flaw.severity) == (file, "error")
    assert words in flaw.message


@pytest.mark.parametrize("split", ["train", "dev"])
def test_a_split_of_one_photograph_is_refused(write_split: Write, split: str) -> None:
    write_split("train")
    flaw = the_one(write_split(split, ims=features(rows=1), caps=["one", "two"]))
    assert (flaw.file, flaw.severity) == (f"{split}_ims.npy", "error")
    flaw = the_one(write_split(split, identity=np.full(4, 7)))
    assert (flaw.file, flaw.severity) == (f"{split}_identity.npy", "error")
    assert "all images are one, so no pair has a negative" in flaw.message
    assert examine_folder(write_split(split, identity=np.array([7, 7, 7, 8]))).flaws == []


@pytest.mark.parametrize(("norm", "is_small"), [(0.003, True), (0.02, False), (9.0, False), (900.0, False)])
def test_regions_too_small_to_learn_from(write_split: Write, norm: float, is_small: bool) -> None:
    unit = features() / np.linalg.norm(features(), axis=2, keepdims=True)
    flaws = examine_folder(write_split(ims=unit * np.float32(norm))).flaws
    assert [(flaw.file, flaw.severity) for flaw in flaws] == [("train_ims.npy", "warning")] * is_small
    assert all(flaw.message.startswith("has regions of norm 0.003 (median), too small to learn") for flaw in flaws)
