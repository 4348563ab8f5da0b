"""Every flaw of a folder is reported, each once, all at the same time; and what a sound split holds.

Texts that become the same token ids are counted, and refused if hardly any stays apart.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline.data import check
from aoq.pipeline.data.batches import TokenisedCaptions
from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.findings import Flaw, confusion, median_norm
from aoq.pipeline.data.vocabulary import SPECIAL_WORDS, Vocabulary


def features(seed=0, rows=4, **changed):
    """Random features; a keyword `row3` changes row 3."""
    array = np.random.default_rng(seed).standard_normal((rows, 3, 5)).astype(np.float32)
    for name, value in changed.items():
        array[int(name.removeprefix("row"))] = value
    return array


def boxes_with(row, box):
    boxes = np.tile(np.array([0.1, 0.2, 0.5, 1.0], dtype=np.float32), (4, 3, 1))
    boxes[row, 1] = box
    return boxes


def the_one(folder):
    (flaw,) = examine_folder(folder).flaws
    return flaw


OTHER = [f"Caption {caption}" for caption in range(10)]
COPY = (
    "has the features of row 1, and each counts as the other's negative; give both one number in train_identity.npy, "
    "or remove one"
)
SHARED = (
    "4 of 12 captions have the text of another image's; these are false negatives, which [screen] same_text = true "
    "leaves out"
)
ALIKE = ["a café's dog - runs", "A cafe\u0301's dog - runs.", "ａ café’s dog – runs", "A CAFÉ's  dog - runs ."]
SMALL = features() / np.linalg.norm(features(), axis=2, keepdims=True) * np.float32(0.003)
ONE_FLAW = {
    "NaN": ({"ims": features(row0=np.nan)}, "error: train_ims.npy[0]: holds NaN"),
    "infinity": ({"ims": features(row2=np.inf)}, "error: train_ims.npy[2]: *extract the image again"),
    "copies": ({"ims": features(row3=features()[1])}, f"warning: train_ims.npy[3]: {COPY}"),
    "copies of another number": (
        {"ims": features(row3=features()[1]), "identity": np.array([0, 1, 0, 2])},
        "warning: train_ims.npy[3]: has the features of row 1",
    ),
    "box above 1": ({"boxes": boxes_with(3, (0.0, 0.0, 1.0, 1.1))}, "error: train_boxes.npy[3]: *outside [0, 1]"),
    "box reversed": ({"boxes": boxes_with(1, (0.5, 0, 0.4, 1))}, "error: train_boxes.npy[1]: *with x2 < x1"),
    "box of NaN": ({"boxes": boxes_with(2, (0, np.nan, 1, 1))}, "error: train_boxes.npy[2]: *outside [0, 1]"),
    "all masked": ({"mask": np.arange(4)[:, None].repeat(3, 1) != 2}, "error: train_mask.npy[2]: masks every region"),
    "equal ids": ({"ids": ["a", "b", "c", "a"]}, "warning: train_ids.txt:4: repeats the id of line 1"),
    "shared texts": ({"caps": [*OTHER, *OTHER[:2]]}, f"warning: train_caps.txt: {SHARED}"),
    "shared texts with a stop": ({"caps": [*OTHER, "caption 0.", "Ｃaption 1"]}, f"warning: train_caps.txt: {SHARED}"),
    "one image": ({"ims": features(rows=1), "caps": ["a", "b"]}, "error: train_ims.npy: *so no pair has a negative"),
    "one photograph": ({"identity": np.full(4, 7)}, "error: train_identity.npy: *so no pair has a negative"),
    "equal features": ({"ims": np.ones((4, 3, 5), np.float32)}, "error: train_ims.npy: *same features for every image"),
    "equal captions": ({"caps": b"a dog runs\n" * 8}, "error: train_caps.txt: *the same caption for every image"),
    "captions written differently": ({"caps": ALIKE}, "error: train_caps.txt: *the same caption for every image"),
    "small norm": ({"ims": SMALL}, "warning: train_ims.npy: has regions of norm 0.003 (median), too small to learn"),
}


@pytest.mark.parametrize("case", ONE_FLAW)
def test_each_flaw_is_named(write_split, case):
    content, expected = ONE_FLAW[case]
    start, _, message = expected.partition("*")
    flaw = str(the_one(write_split(**content)))
    assert flaw.startswith(start)
    assert message in flaw


@pytest.mark.parametrize(
    "content",
    [
        {"ids": list("abcd"), "boxes": boxes_with(0, (0, 0, 1, 1)), "mask": np.ones((4, 3), bool)},
        {"ims": features(row3=features()[1]), "identity": np.array([0, 1, 2, 1])},
        {"ims": np.repeat(features(), 3, axis=0)},
        {"caps": ["a dog", "a dog", *OTHER]},  # both of one image
        {"ims": features() * np.float32(900)},
    ],
)
def test_a_sound_folder_has_no_flaw(write_split, content):
    write_split("dev")
    (write_split(**content) / "notes.npy").write_text("ignored")
    assert examine_folder(write_split(**content)).flaws == []


def test_a_folder_without_a_split_or_with_missing_files(tmp_path, write_split):
    assert "no split" in the_one(tmp_path).message
    assert "is not a folder" in the_one(tmp_path / "elsewhere").message
    (write_split() / "train_ims.npy").unlink()
    assert (the_one(tmp_path).file, the_one(tmp_path).severity) == ("train_ims.npy", "error")
    (write_split("dev") / "dev_caps.txt").unlink()
    assert [flaw.file for flaw in examine_folder(tmp_path).flaws] == ["dev_caps.txt", "train_ims.npy"]


def test_rows_are_numbered_across_blocks(write_split, monkeypatch):
    monkeypatch.setattr(check, "CHECKED_BYTES", 2 * features()[0].nbytes)
    assert the_one(write_split(ims=features(rows=12, row7=np.nan))).row == 7


def test_every_bad_line_is_named(write_split):
    caps = b"good\n\nbad \xff\n" + b"".join(b"good %d\n" % n for n in range(8)) + b" \n"
    flaws = examine_folder(write_split(caps=caps, ids=["a", "", "c", "d"])).flaws
    places = [("train_caps.txt", 2), ("train_caps.txt", 3), ("train_caps.txt", 12), ("train_ids.txt", 2)]
    assert [(flaw.file, flaw.line) for flaw in flaws] == places
    assert "0xff" in flaws[1].message


@pytest.mark.parametrize(
    ("spoilt", "message"), [(np.inf, "error: {}_ims.npy[{}]: holds NaN"), (0, "warning: {}_ims.npy[{}]: holds zeros")]
)
def test_broken_and_empty_rows_are_neither_copies_nor_a_leak(write_split, spoilt, message):
    write_split("dev", ims=features(row1=spoilt, row2=spoilt))
    flaws = examine_folder(write_split(ims=features(1, row1=spoilt, row2=spoilt))).flaws
    expected = [message.format(split, row) for split in ("dev", "train") for row in (1, 2)]
    assert all(str(flaw).startswith(start) for flaw, start in zip(flaws, expected, strict=True))


def test_other_splits_are_compared_with_train(write_split):
    other = features(1, row2=features()[3])
    write_split("dev", ims=other, ids=["w", "a", "y", "z"])
    write_split("test", ims=other, ids=["1", "2", "3", "4"])
    folder = write_split(ims=features(), ids=list("abcd"))
    flaws = examine_folder(folder).flaws
    places = [("dev_ims.npy", 2, None), ("dev_ids.txt", None, 2), ("test_ims.npy", 2, None)]
    assert [(flaw.file, flaw.row, flaw.line) for flaw in flaws] == places
    assert all("leak" in flaw.message and flaw.severity == "warning" for flaw in flaws)
    write_split("test", ims=features()[:, :, :4])
    flaw = str(examine_folder(folder).flaws[0])
    assert flaw.startswith("error: test_ims.npy: has regions of 4 features, and train's have 5;")


def test_repetition_that_breaks_is_an_error(write_split):
    repeated = np.repeat(features(rows=100), 3, axis=0)
    repeated[3 * 50 + 2] += 1.0
    flaw = the_one(write_split(ims=repeated, caps=[*map(str, range(300))]))
    assert (flaw.row, flaw.severity) == (152, "error")


def test_all_flaws_are_reported_at_once(write_split):
    folder = write_split(
        ims=features(row1=np.nan),
        caps=["a"] * 12 + [""],
        ids=["a"],
        boxes=np.zeros((4, 3), np.float32),
        mask=np.zeros((1, 3), bool),
        pairs=np.zeros(12),
    )
    write_split("dev", ims=np.zeros((4, 5), np.float32))
    places = ["dev_ims.npy", "train_caps.txt:13", "train_pairs.npy", "train_ids.txt", "train_ims.npy[1]"]
    flaws = examine_folder(folder).flaws
    assert [str(flaw).split(": ")[1] for flaw in flaws] == [*places, "train_boxes.npy", "train_mask.npy"]
    assert not any(str(folder) in flaw.message for flaw in flaws)


def test_annotations_that_do_not_fit(write_split):
    folder = write_split("dev")
    path = folder / "dev_relevance_eccv.csv"
    path.write_text("caption_id,image_id\n0,0\n")
    assert examine_folder(folder).flaws == []
    path.write_text("caption_id,image_id\n0,9\n")
    assert str(the_one(folder)).startswith("error: dev_relevance_eccv.csv: ")
    assert "image_id 9 to 9" in the_one(folder).message
    path.with_suffix(".parquet").write_bytes(b"")
    both = f"{path.stem}.parquet and {path.name}"
    assert f"{both} hold the same annotation; remove one" in the_one(folder).message


def test_the_facts_of_a_split_are_one_line(write_split):
    turned = np.linspace(0, 1, 12).reshape(4, 3)
    ims = np.stack([5 * np.cos(turned), 5 * np.sin(turned)], axis=2).astype(np.float32)  # of norm 5

    def line(**content):
        (facts,) = examine_folder(write_split(**content)).facts
        return str(facts)

    sizes = "train: 4 images × 3 regions × 2 features (float32, median norm 5), 12 captions, "
    assert line(ims=ims) == f"{sizes}3 per image by their order (no train_pairs.npy)"
    assert line(ims=ims.repeat(3, axis=0)).endswith("; each image is repeated in 3 rows")
    pairs, identity = np.array([0] * 9 + [1, 2, 3]), np.array([0, 0, 1, 2])
    copies = "; 3 photographs by train_identity.npy"
    assert line(ims=ims, pairs=pairs, identity=identity) == f"{sizes}1 to 9 per image by train_pairs.npy{copies}"
    assert examine_folder(write_split(caps=["one"] * 13)).facts == []
    array = np.ones((2001, 3, 4), np.float16)
    array[:, 0], array[0] = 0, np.nan
    assert median_norm(array) == 2.0
    assert median_norm(array * 0) is None


VOCABULARY = Vocabulary((*SPECIAL_WORDS, *"abcde", "."))


def found(captions: Sequence[str]) -> Flaw | None:
    return confusion("x_caps.txt", captions, TokenisedCaptions.build(captions, VOCABULARY).sequences())


@given(st.lists(st.text("abcxyz", min_size=1, max_size=2), min_size=1, max_size=9))
def test_the_count_is_its_definition(captions: list[str]) -> None:
    ids = [tuple(VOCABULARY.encode([text])) for text in captions]
    places = range(len(captions))
    alike = sum(any(ids[i] == ids[j] and captions[i] != captions[j] for j in places) for i in places)
    flaw = found(captions)
    if len(set(captions)) > 1 and len(set(ids)) == 1:
        assert flaw is not None
        assert flaw.severity == "error"
    elif alike:
        assert flaw is not None
        assert flaw.message.startswith(f"{alike} of {len(captions)} captions have the token ids of another text")
    else:
        assert flaw is None


def test_few_alike_are_no_flaw_and_more_are_a_warning() -> None:
    known = [" ".join(word) for word in ("abc", "bca", "cab", "aab", "bbc", "cca", "dea", "eda", "aed", "ade")]
    assert found(known * 10 + ["x", "y"]) is None
    flaw = found([*known, "a x", "a y"])
    assert flaw is not None
    assert (flaw.severity, flaw.message[:32]) == ("warning", "2 of 12 captions have the token ")
    assert "(the first in line 11: 'a x')" in flaw.message
