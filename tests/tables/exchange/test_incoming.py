"""What other programs wrote: NegCLIP's TSV, and the pictures that ids name."""

import csv
import os

import numpy as np
import pytest

from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.exchange.negclip import read_negclip
from aoq.pipeline.tables.exchange.outgoing import find_pictures
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.batch_sampler import BatchSampler


def write(path, rows, columns=("title", "filepath", "neg_caption", "neg_image")):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([columns, *rows])
    return path


def listed(table, direction, row):
    ids = table[direction].negative_ids[row]
    return ids[ids >= 0].tolist()


def test_texts_that_are_no_title_are_captions_of_no_image(tmp_path):
    """NegCLIP makes such texts. Equal titles of two images are told apart by whose negatives they are."""
    rows = [
        ("a dog", "0.jpg", ["dog a", "a dog"], [1]),
        ("a dog", "1.jpg", ["a cat", "dog a"], [0, 2]),
        ("a cat", "2.jpg", ["cat a"], [0, 3, 1]),
        ("a black cat", "2.jpg", ["a dog", "cat a", "a cat"], [0]),
    ]
    table, images, captions = read_negclip(write(tmp_path / "train.tsv", rows))
    assert images == ["0.jpg", "1.jpg", "2.jpg"]
    assert captions == ["a dog", "a dog", "a cat", "a black cat", "dog a", "cat a"]
    assert table.positives.tolist() == [[0, 0], [1, 1], [2, 2], [2, 3]]
    assert [listed(table, "i2t", image) for image in range(3)] == [[4, 1], [2, 4], [5, 0]]
    assert [listed(table, "t2i", caption) for caption in range(6)] == [[1], [0, 2], [0, 1], [0], [], []]
    sampler = BatchSampler(table, batch_size=4, companions="omit")
    for epoch in range(20):
        (anchors, offline) = np.split(sampler.batch(epoch, 0), 2)
        for (image, caption), (other, text) in zip(anchors.tolist(), offline.tolist(), strict=True):
            assert text in listed(table, "i2t", image)
            assert other in listed(table, "t2i", caption)
    table.save(tmp_path / "table")
    assert audit(tmp_path / "table") == []
    assert read_table(tmp_path / "table").manifest["directions"]["i2t"]["guarantee"] == "imported"


GOOD = ("a", "0.jpg", ["b"], [1]), ("b", "1.jpg", ["a"], [0])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", "0.jpg", ["b"], [2]), "row 0 names row 2 in neg_image, but there are rows 0 to 1"),
        (("a", "0.jpg", ["b"], [-1]), "row 0 names row -1 in neg_image"),
        (("a", "0.jpg", ["b"], ["1"]), "row 0 has no list of numbers of rows in neg_image"),
        (("a", "0.jpg", "b", [1]), "row 0 has no list of texts in neg_caption: 'b'"),
        (("a", "0.jpg", "[" * 500, [1]), "row 0 has no list of texts in neg_caption"),
        (("a", "0.jpg", "__import__('os').getcwd()", [1]), "row 0 has no list of texts in neg_caption"),
    ],
)
def test_lists_that_are_none_are_refused(row, message, tmp_path):
    path = write(tmp_path / "train.tsv", [row, GOOD[1]])
    with pytest.raises(ValueError, match=message):
        read_negclip(path)


def test_a_file_without_the_columns_is_refused(tmp_path):
    path = write(tmp_path / "train.tsv", [row[:3] for row in GOOD], ("title", "filepath", "neg_caption"))
    with pytest.raises(ValueError, match=r"not NegCLIP's TSV with the columns title, filepath.*neg_image"):
        read_negclip(path)
    with pytest.raises(ValueError, match="it has no rows"):
        read_negclip(write(tmp_path / "empty.tsv", []))
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_negclip(tmp_path / "nothing.tsv")


FILES = ("a.jpg", "b.png", "c.gif", "d.webp", "sub/e.bmp", "sub/f", "sub/g.JPG")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "sub").mkdir(parents=True)
    for name in FILES:
        (tmp_path / "root" / name).write_bytes(b"a picture")
    (tmp_path / "secret.jpg").touch()
    return tmp_path / "root"


def test_an_id_names_its_file_with_the_ending_or_without(root):
    found = find_pictures(root, ["a", "a.jpg", "b", "c.gif", "d", "sub/e", "sub/f", "sub/g"])
    names = [os.path.relpath(path, root) for path in found]
    assert names == ["a.jpg", "a.jpg", "b.png", "c.gif", "d.webp", "sub/e.bmp", "sub/f", "sub/g.JPG"]
    assert all(os.path.isabs(path) for path in found)


@pytest.mark.parametrize("name", ["17", "../secret.jpg", "/etc/passwd", "", ".", "sub", "a\0", "x" * 5000])
def test_an_id_without_a_file_below_the_root_is_named(root, name):
    with pytest.raises(ValueError, match=r"1 of 2 images have no file below .*root, the first is '"):
        find_pictures(root, ["a", name])
