"""The formats by name, what each needs to know, and a table on disk in one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.exchange import bare_lists, jsonlines, parquet
from aoq.pipeline.tables.exchange.outgoing import ROWS, Names, Outgoing, Written, rows_by_id
from aoq.pipeline.tables.files import count_lists, read_chunks, read_manifest, read_positives, said_of
from aoq.pipeline.tables.pairs import SIDES, Pairs, positives_of
from aoq.pipeline.tables.screens.view import View

Matrices = Mapping[str, Float32[np.ndarray, "_ D"]]
"""The vectors of `images` and of `captions`."""


@dataclass(frozen=True)
class Format:
    """`write` makes the file, or the folder, of one direction; of both in turn if `both_directions`."""

    write: Callable[[Outgoing, Path], Written]
    has_texts: bool = True
    """And positives; a format without has rows alone."""
    scores: Literal["optional", "always", "never", "of negatives"] = "never"
    both_directions: bool = False


FORMATS: dict[str, Format] = {
    "triplet": Format(parquet.write_triplets, scores="optional"),
    "n-tuple": Format(parquet.write_tuples, scores="optional"),
    "labeled-pair": Format(parquet.write_labeled_pairs, scores="optional"),
    "labeled-list": Format(parquet.write_labeled_lists, scores="optional"),
    "pylate": Format(parquet.write_pylate, scores="always"),
    "flagembedding": Format(jsonlines.write_flagembedding, scores="optional"),
    "tevatron": Format(jsonlines.write_tevatron),
    "trec": Format(bare_lists.write_run, has_texts=False, scores="of negatives"),
    "aoq": Format(bare_lists.write_official, has_texts=False, both_directions=True),
}


def find_format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"there is no format {name!r}; formats are {', '.join(FORMATS)}.")
    return FORMATS[name]


def export_table(
    table: Path,
    output: Path,
    name: str,
    *,
    direction: Direction | None = None,
    num_negatives: int | None = None,
    scores: bool = False,
    captions: Sequence[str] | None = None,
    image_ids: Sequence[str] | None = None,
    vectors: Matrices | None = None,
    view: View | None = None,
) -> dict[Direction, Written]:
    """Write the lists of one direction, or of both where the format has both, to the new file or folder `output`.

    `captions` are the texts of all captions, `image_ids` of all images (by default their row numbers). `vectors`, what
    the table was mined from, give the scores of positives that the table does not keep. What `view` flags is left out.
    """
    form, manifest = find_format(name), read_manifest(table)
    names = _names(table, captions, image_ids)
    if captions is None and form.has_texts:
        raise ValueError(f"{name} has the captions' texts, and none are given; give --captions FILE or --data FOLDER.")
    pairs = _true_pairs(table, manifest) if form.has_texts else np.empty((0, 2), np.int32)
    written: dict[Direction, Written] = {}
    for one in DIRECTIONS if direction is None else (direction,):
        _, h = count_lists(table / f"{one}.parquet")
        if num_negatives is not None and num_negatives > h and not form.both_directions:
            raise ValueError(f"{num_negatives} negatives are asked for, and the {one} lists of {table} have {h}.")
        known = said_of(manifest, one).get("scores", "exact")
        has_scores = scores or form.scores == "always"
        if (has_scores and known != "exact") or (form.scores == "of negatives" and known == "none"):
            lacking = "scores" if known == "none" else "scores of positives"
            raise ValueError(f"{table} was imported without {lacking}; import it with --vectors to have them.")
        anchors, candidates = SIDES[one]
        outgoing = Outgoing(
            one,
            _chunks(table, one, manifest, view),
            names[anchors],
            names[candidates],
            positives_of(one, pairs, len(names[anchors].ids)),
            min(num_negatives or h, h),
            has_scores,
            None if vectors is None else (vectors[anchors], vectors[candidates]),
        )
        written[one] = form.write(outgoing, output)
    return written


def _chunks(
    table: Path, direction: Direction, manifest: Mapping[str, Any], view: View | None
) -> Iterator[NegativeLists]:
    start = 0
    for lists in read_chunks(table, direction, manifest, ROWS):
        yield lists if view is None else lists.keep(view[direction].flags[start : start + len(lists)] == 0)
        start += len(lists)


def _names(table: Path, captions: Sequence[str] | None, image_ids: Sequence[str] | None) -> dict[str, Names]:
    """What images and captions go by."""
    images, rows = ([str(row) for row in range(count_lists(table / f"{one}.parquet")[0])] for one in DIRECTIONS)
    for given, numbers, what in ((image_ids, images, "image ids"), (captions, rows, "captions")):
        if given is not None and len(given) != len(numbers):
            raise ValueError(f"{len(given)} {what} are given for a table of {len(numbers)}; they are of other data.")
    ids = images if image_ids is None else image_ids
    rows_by_id(ids)
    return {"images": Names(ids, ids), "captions": Names(rows, rows if captions is None else captions)}


def _true_pairs(table: Path, manifest: Mapping[str, Any]) -> Pairs:
    pairs = read_positives(table, manifest)
    if not len(pairs):
        raise ValueError(f"in {table} no caption belongs to any image, and this format needs positives.")
    return pairs
