"""NegCLIP's TSV, written and read: a row per pair, title (the caption), filepath, neg_caption and neg_image.

`neg_caption` are texts, negatives of the row's image. `neg_image` are numbers of rows whose images are negatives of the
row's caption; the trainer adds such a row's image, caption and one of its `neg_caption` to the batch. It draws one of
each list, so no list may be empty, nor the list of a row that another row names.
"""

from __future__ import annotations

import ast
import csv
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from aoq.pipeline.columns import parse_csv
from aoq.pipeline.files import file_sha256
from aoq.pipeline.reading import reading
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.exchange.outgoing import Outgoing
from aoq.pipeline.tables.pairs import pairing_sha256
from aoq.pipeline.tables.table import NegativeTable

_TSV_COLUMNS = pa.schema(dict.fromkeys(("title", "filepath", "neg_caption", "neg_image"), pa.string()))


def write_negclip(outgoing: Outgoing, folder: Path) -> tuple[int, int]:
    """Write a row per pair; one without negatives of both kinds is left out, and no other row names it."""
    assert outgoing.other is not None
    of_captions, of_images = (
        np.concatenate([rows.negatives["row"] for rows in one.rows()]) for one in (outgoing, outgoing.other)
    )
    captions = np.repeat(np.arange(len(of_captions)), np.diff(outgoing.positives.offsets))
    images = outgoing.positives.ids
    complete = np.any(of_images >= 0, axis=1)[images]
    while True:  # each row that is left out may leave another without a negative image
        has_row = np.zeros(len(of_images) + 1, dtype=np.bool_)  # the last entry is for padding
        has_row[images[complete]] = True
        left = complete & has_row[of_captions].any(axis=1)[captions]
        if left.sum() == complete.sum():
            break
        complete = left
    captions, images = captions[complete], images[complete]
    row_of = np.full(len(of_images) + 1, -1)
    row_of[images[::-1]] = np.arange(len(images))[::-1]  # an image's first row
    folder.mkdir()
    texts, files = outgoing.anchors.values, outgoing.candidates.values
    with (folder / "train.tsv").open("w", encoding="utf-8", newline="") as file:
        # Readers take a carriage return for the end of a row, and Python before 3.13 does not quote it by itself.
        writer = csv.writer(file, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(_TSV_COLUMNS.names)
        for caption, image in zip(captions.tolist(), images.tolist(), strict=True):
            rows = row_of[of_captions[caption]]
            negatives = [texts[row] for row in of_images[image] if row >= 0]
            writer.writerow([texts[caption], files[image], negatives, rows[rows >= 0].tolist()])
    return len(captions), len(of_captions) - len(np.unique(captions))


class NegClip(NamedTuple):
    """A table without scores, the path of each image, and the captions: a row's title each, then other texts."""

    table: NegativeTable
    images: list[str]
    captions: list[str]


def read_negclip(path: Path | str) -> NegClip:
    """Read NegCLIP's TSV: every row's title is a caption, every path an image, in order of first appearance.

    An image's negatives are the `neg_caption` of all its rows. Texts that are not titles are appended as captions of no
    image: NegCLIP makes them by exchanging words. Own positives are left out.
    """
    path = Path(path)
    with reading(path, f"NegCLIP's TSV with the columns {', '.join(_TSV_COLUMNS.names)}"):
        columns = parse_csv(path, _TSV_COLUMNS).to_pydict()
        if not (count := len(columns["title"])):
            raise ValueError("it has no rows")
        texts = _parse_lists("neg_caption", columns, str, "texts")
        rows = _parse_lists("neg_image", columns, int, "numbers of rows")
        for row, named in enumerate(rows):
            if outside := [one for one in named if not 0 <= one < count]:
                raise ValueError(f"row {row} names row {outside[0]} in neg_image, but there are rows 0 to {count - 1}")
    row_of = {file: row for row, file in enumerate(dict.fromkeys(columns["filepath"]))}
    image_of = [row_of[file] for file in columns["filepath"]]
    captions, of_images = _captions_of_images(columns["title"], image_of, texts)
    of_captions = [
        [*dict.fromkeys(image_of[row] for row in named if image_of[row] != own)]
        for named, own in zip(rows, image_of, strict=True)
    ]
    pairs = np.stack([image_of, np.arange(count)], axis=1).astype(np.int32)
    about = {one: {"search": "none", "guarantee": "imported", "scores": "none"} for one in DIRECTIONS}
    teacher, dataset = {"lists_sha256": file_sha256(path)}, pairing_sha256(pairs, len(captions))
    manifest = {"dataset": dataset, "teacher": teacher, "directions": about}
    lists = _padded(of_images, len(row_of)), _padded(of_captions, len(captions))
    return NegClip(NegativeTable(*lists, manifest, pairs), list(row_of), captions)


def _parse_lists(name: str, columns: dict[str, list[str]], kind: type, nouns: str) -> list[list[Any]]:
    """Parse the lists of a column, which are Python literals."""
    lists = []
    for row, text in enumerate(columns[name]):
        try:
            items = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            items = None
        if not isinstance(items, list) or not all(type(item) is kind for item in items):
            raise ValueError(f"row {row} has no list of {nouns} in {name}: {text[:40]!r}")
        lists.append(items)
    return lists


def _captions_of_images(
    titles: Sequence[str], image_of: Sequence[int], named: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[int]]]:
    """List all captions, and each image's negatives, each once; of equal titles, another image's comes first."""
    captions, rows_of = list(titles), defaultdict(list)
    for row, title in enumerate(titles):
        rows_of[title].append(row)
    lists: list[dict[int, None]] = [{} for _ in range(max(image_of) + 1)]
    for image, texts in zip(image_of, named, strict=True):
        for text in texts:
            if text not in rows_of:
                rows_of[text].append(len(captions))
                captions.append(text)
            others = (row for row in rows_of[text] if row >= len(image_of) or image_of[row] != image)
            if (other := next(others, None)) is not None:
                lists[image][other] = None
    return captions, [list(rows) for rows in lists]


def _padded(lists: Sequence[Sequence[int]], count: int) -> NegativeLists:
    ids = np.full((count, max(map(len, lists))), -1, np.int32)
    for row, named in enumerate(lists):
        ids[row, : len(named)] = named
    return NegativeLists(ids, np.full(ids.shape, np.nan, np.float32), np.full(count, np.nan, np.float32))
