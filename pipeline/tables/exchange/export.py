"""From a table on disk to a file of another format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.exchange.formats import FORMATS
from aoq.pipeline.tables.exchange.outgoing import ROWS, Names, Outgoing, Vectors, check_ids
from aoq.pipeline.tables.exchange.written import Written
from aoq.pipeline.tables.files import POSITIVES, count_lists, read_chunks, read_manifest, read_positives
from aoq.pipeline.tables.pairs import Pairs, positives_of
from aoq.pipeline.tables.screens.view import View, leave_out

Matrices = Mapping[str, Float32[np.ndarray, "_ D"]]
"""The vectors of `images` and of `captions`."""


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
    form = FORMATS[name]
    names = _names(table, captions, image_ids)
    if captions is None and form.has_texts:
        raise ValueError(f"{name} has the captions' texts, and none are given; give --captions FILE or --data FOLDER.")
    written: dict[Direction, Written] = {}
    for one in DIRECTIONS if direction is None else (direction,):
        _, h = count_lists(table / f"{one}.parquet")
        if num_negatives is not None and num_negatives > h and not form.both_directions:
            raise ValueError(f"{num_negatives} negatives are asked for, and the {one} lists of {table} have {h}.")
        known = read_manifest(table).get("directions", {}).get(one, {}).get("scores", "exact")
        has_scores = scores or form.scores == "always"
        if (has_scores and known != "exact") or (form.scores == "of negatives" and known == "none"):
            lacking = "scores" if known == "none" else "scores of positives"
            raise ValueError(f"{table} was imported without {lacking}; import it with --vectors to have them.")
        pairs = _true_pairs(table, len(names["i2t"].ids), len(names["t2i"].ids), needed=form.has_positives)
        anchors, candidates = _sides(one, names)
        outgoing = Outgoing(
            one,
            _chunks(table, one, view),
            anchors,
            candidates,
            positives_of(one, pairs, len(anchors.ids)),
            min(num_negatives or h, h),
            has_scores,
            None if vectors is None else Vectors(*_sides(one, {"i2t": vectors["images"], "t2i": vectors["captions"]})),
        )
        written[one] = form.write(outgoing, output)
    return written


def _chunks(table: Path, direction: Direction, view: View | None) -> Iterator[NegativeLists]:
    start = 0
    for lists in read_chunks(table / f"{direction}.parquet", ROWS):
        yield lists if view is None else leave_out(lists, view[direction].rows(start, start + len(lists)))
        start += len(lists)


def _sides(direction: Direction, by_anchor: Mapping[Direction, Any]) -> tuple[Any, Any]:
    """Of anchors and of candidates."""
    sides = by_anchor["i2t"], by_anchor["t2i"]
    return sides if direction == "i2t" else sides[::-1]


def _names(table: Path, captions: Sequence[str] | None, image_ids: Sequence[str] | None) -> Mapping[Direction, Names]:
    """What images (anchors of i2t) and captions go by."""
    images, rows = ([str(row) for row in range(count_lists(table / f"{one}.parquet")[0])] for one in DIRECTIONS)
    for given, numbers, what in ((image_ids, images, "image ids"), (captions, rows, "captions")):
        if given is not None and len(given) != len(numbers):
            raise ValueError(f"{len(given)} {what} are given for a table of {len(numbers)}; they are of other data.")
    ids = images if image_ids is None else image_ids
    check_ids(ids)
    return {"i2t": Names(ids, ids), "t2i": Names(rows, rows if captions is None else captions)}


def _true_pairs(table: Path, images: int, captions: int, *, needed: bool) -> Pairs:
    if not needed:
        return np.empty((0, 2), dtype=np.int32)
    pairs = read_positives(table)
    if not len(pairs):
        raise ValueError(f"in {table} no caption belongs to any image, and this format needs positives.")
    if ((pairs < 0) | (pairs >= [images, captions])).any():
        raise ValueError(f"{table / POSITIVES} has pairs with rows that the table has not; mine the table again.")
    return pairs
