"""Read NegCLIP's TSV (`negclip.py`) as a table, with the pictures and captions of its rows."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from aoq.pipeline.columns import parse_csv
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.reading import reading
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.pairs import pairing_sha256
from aoq.pipeline.tables.table import NegativeTable

COLUMNS = pa.schema(dict.fromkeys(("title", "filepath", "neg_caption", "neg_image"), pa.string()))
KINDS = {"neg_caption": (str, "texts"), "neg_image": (int, "numbers of rows")}


class NegClip(NamedTuple):
    """A table without scores, the path of each image, and the captions: a row's title each, then other texts."""

    table: NegativeTable
    images: list[str]
    captions: list[str]


def read_negclip(path: Path | str) -> NegClip:
    """Read NegCLIP's TSV: every row's title is a caption, every path an image, in order of first appearance.

    An image's negatives are the `neg_caption` of all its rows. Texts that are not titles are appended as captions of no
    image: NegCLIP makes them by exchanging words. Own positives are left out.

    Raises:
        ValueError: for a file without these columns, malformed lists, or row numbers that it does not have.
    """
    path = Path(path)
    rows = _read_rows(path)
    row_of = {file: row for row, file in enumerate(dict.fromkeys(rows.files))}
    image_of = [row_of[file] for file in rows.files]
    captions, of_images = _captions_of_images(rows.titles, image_of, rows.captions)
    of_captions = [
        [*dict.fromkeys(image_of[row] for row in named if image_of[row] != own)]
        for named, own in zip(rows.images, image_of, strict=True)
    ]
    pairs = np.stack([image_of, np.arange(len(image_of))], axis=1).astype(np.int32)
    said = {"search": "none", "guarantee": "imported", "scores": "none"}
    manifest = {
        "dataset": pairing_sha256(pairs, len(captions)),
        "teacher": {"lists_sha256": file_sha256(path)},
        "directions": dict.fromkeys(DIRECTIONS, said),
    }
    sides = _padded(of_images, len(row_of)), _padded(of_captions, len(captions))
    return NegClip(NegativeTable(*sides, manifest, pairs), list(row_of), captions)


class _Rows(NamedTuple):
    """Columns of the file."""

    titles: list[str]
    files: list[str]
    captions: list[list[str]]
    images: list[list[int]]


def _read_rows(path: Path) -> _Rows:
    with reading(path, f"NegCLIP's TSV with the columns {', '.join(COLUMNS.names)}"):
        columns = parse_csv(path, COLUMNS, delimiter="\t").to_pydict()
        if not (count := len(columns["title"])):
            raise ValueError("it has no rows")
        lists = ([_list(name, row, text) for row, text in enumerate(columns[name])] for name in KINDS)
        rows = _Rows(columns["title"], columns["filepath"], *lists)
        for row, named in enumerate(rows.images):
            if outside := [one for one in named if not 0 <= one < count]:
                raise ValueError(f"row {row} names row {outside[0]} in neg_image, and there are rows 0 to {count - 1}")
    return rows


def _captions_of_images(
    titles: Sequence[str], image_of: Sequence[int], named: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[int]]]:
    """List all captions, and each image's negatives, each once; of equal titles, another image's comes first."""
    captions, rows_of = list(titles), defaultdict(list)
    for row, title in enumerate(titles):
        rows_of[title].append(row)
    found: list[dict[int, None]] = [{} for _ in range(max(image_of) + 1)]
    for image, texts in zip(image_of, named, strict=True):
        for text in texts:
            if text not in rows_of:
                rows_of[text].append(len(captions))
                captions.append(text)
            others = (row for row in rows_of[text] if row >= len(image_of) or image_of[row] != image)
            if (other := next(others, None)) is not None:
                found[image][other] = None
    return captions, [list(rows) for rows in found]


def _list(name: str, row: int, text: str) -> list[Any]:
    kind, nouns = KINDS[name]
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(type(one) is kind for one in found):
        raise ValueError(f"row {row} has no list of {nouns} in {name}: {text[:40]!r}")
    return found


def _padded(lists: Sequence[Sequence[int]], count: int) -> NegativeLists:
    ids = np.full((count, max(map(len, lists))), -1, np.int32)
    for row, named in enumerate(lists):
        ids[row, : len(named)] = named
    return NegativeLists(ids, np.full(ids.shape, np.nan, np.float32), np.full(count, np.nan, np.float32))
