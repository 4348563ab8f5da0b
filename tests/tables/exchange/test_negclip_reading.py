"""NegCLIP's TSV read back: the negatives that were written, by their texts and files."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.exchange.formats import FORMATS
from aoq.pipeline.tables.exchange.negclip import read_negclip
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.batch_sampler import BatchSampler


def write(path, rows, columns=("title", "filepath", "neg_caption", "neg_image")):
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows([columns, *rows])
    return path


def listed(table, direction, row):
    ids = table[direction].negative_ids[row]
    return ids[ids >= 0].tolist()


def test_what_was_written_is_read(world, outgoing, tmp_path):
    """Captions without an image have no row, nor has image 11, which has none; all else is as it was."""
    whole = outgoing("i2t", 6, pictures=True)
    FORMATS["negclip"].write(outgoing("t2i", pictures=True, other=whole), tmp_path / "out")
    table, images, captions = read_negclip(tmp_path / "out" / "train.tsv")
    row_of = {text: row for row, text in enumerate(world.texts)}
    assert len(row_of) == len(world.texts)
    written = world.table.positives[np.argsort(world.table.positives[:, 1])]
    assert captions[: len(written)] == [world.texts[caption] for caption in written[:, 1]]
    assert [(images[i], captions[t]) for i, t in table.positives] == [
        (world.files[i], world.texts[t]) for i, t in written
    ]
    for row, file in enumerate(images):
        image = world.files.index(file)
        assert [row_of[captions[one]] for one in listed(table, "i2t", row)] == listed(world.table, "i2t", image)
    for row, (_, caption) in enumerate(written):
        negatives = [one for one in listed(world.table, "t2i", caption) if one in written[:, 0]]
        assert [world.files.index(images[one]) for one in listed(table, "t2i", row)] == negatives


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
        (("a", "0.jpg", ["b"], [2]), "row 0 names row 2 in neg_image, and there are rows 0 to 1"),
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
