"""Import another program's lists as a table.

Own positives are removed. With vectors every pair is scored exactly and sorted in a table's order. Without them the
scores are those that came with the lists, or none (null), and the order is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Integer

from aoq.pipeline.search.lists import NegativeLists, in_table_order, to_arrow
from aoq.pipeline.search.positives import Positives, offsets_of, pairs_of
from aoq.pipeline.search.problem import DIRECTIONS, OTHER, Direction, blocks
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.exchange.bare_lists import measure_run, open_official, read_run
from aoq.pipeline.tables.files import ContentHash
from aoq.pipeline.tables.pairs import SIDES, Known, is_among, pair_keys, pairing_sha256, positives_of, rows_by_id
from aoq.pipeline.tables.writing import list_writer, write_table

GROUP_ROWS = 1024
"""Lists converted at a time; official lists are 2000 long."""
MOST_ROWS = 100
"""Most images or captions per list of the runs, if their numbers alone give the count."""
Matrix = Float32[np.ndarray, "_ D"]


@dataclass(frozen=True)
class ForeignLists:
    """One direction as given; shorter lists are padded with -1."""

    source: str
    ids: Integer[np.ndarray, "anchors h"]
    scores: Float32[np.ndarray, "anchors h"] | None = None


def find_files(source: Path) -> dict[Direction, Path]:
    """Find the images' lists, and the captions' beside them."""
    if not source.name.startswith("i2t"):
        raise ValueError(
            f"{source} is not the name of a file with images' lists; name i2t_NAME.npy or i2t_NAME.trec, beside which "
            "the captions' lists lie as t2i_NAME.npy or t2i_NAME.trec."
        )
    files: dict[Direction, Path] = {"i2t": source, "t2i": source.with_name("t2i" + source.name.removeprefix("i2t"))}
    for path in files.values():
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is no file; a table is imported with the lists of images (i2t) and captions (t2i), and one "
                "set is not imported."
            )
    return files


def open_foreign_lists(
    files: Mapping[Direction, Path], known_images: Known, known_captions: Known, work: Path
) -> dict[Direction, ForeignLists]:
    """Open official `.npy` lists directly, and TREC runs by way of files in the folder `work`.

    A run has a row for each row of a side, or, if their number is unknown, for as many as it names.
    """
    if files["i2t"].suffix == ".npy":
        return {direction: ForeignLists(str(path), open_official(path)) for direction, path in files.items()}
    sides = known_images, known_captions
    images, captions = (None if side.ids is None else rows_by_id(side.ids, side.noun) for side in sides)
    i2t, t2i = measure_run(files["i2t"], images, captions), measure_run(files["t2i"], captions, images)
    named = max(i2t.queries, t2i.documents), max(t2i.queries, i2t.documents)
    image_count, caption_count = (
        rows if side.count is None else side.count for rows, side in zip(named, sides, strict=True)
    )
    if t2i.queries > caption_count:
        raise ValueError(
            f"{files['t2i']} has a list for caption {t2i.queries - 1}, and there are captions 0 to {caption_count - 1}."
        )
    derived = [rows for rows, side in zip(named, sides, strict=True) if side.count is None]
    if max(derived, default=0) > MOST_ROWS * (lists := i2t.lists + t2i.lists):
        raise ValueError(
            f"the runs name image {image_count - 1} and caption {caption_count - 1}, and have {lists} lists: these are "
            "no rows of the data; number rows from 0, and give --image-ids where images go by ids."
        )
    of_images = read_run(files["i2t"], images, captions, image_count, i2t.longest, work)
    of_captions = read_run(files["t2i"], captions, images, caption_count, t2i.longest, work)
    return {"i2t": ForeignLists(str(files["i2t"]), *of_images), "t2i": ForeignLists(str(files["t2i"]), *of_captions)}


def import_lists(
    foreign: Mapping[Direction, ForeignLists],
    positives: Integer[np.ndarray, "*shape"],
    vectors: Mapping[str, Matrix] | None,
    *,
    provenance: Mapping[str, Any],
    output: Path,
) -> dict[str, Any]:
    """Write the table to the new folder `output` and return its manifest.

    `positives` are rows (image, caption), or the image of each caption. Without a `dataset` in the provenance they name
    the data.
    """
    images, captions = (len(foreign[direction].ids) for direction in DIRECTIONS)
    _check_sizes(foreign, positives, images, captions)
    if vectors is not None and (sizes := (len(vectors["images"]), len(vectors["captions"]))) != (images, captions):
        raise ValueError(
            f"there are vectors of {sizes[0]} images and {sizes[1]} captions, and lists for {images} and {captions}."
        )
    pairs, made = pairs_of(positives, images, captions), {}
    provenance = {"dataset": pairing_sha256(pairs, captions), **provenance}
    for direction in DIRECTIONS:
        lists, candidates = foreign[direction], len(foreign[OTHER[direction]].ids)
        both = None if vectors is None else [vectors[side] for side in SIDES[direction]]
        scores = "exact" if both else "none" if lists.scores is None else "source"
        about = {"h": lists.ids.shape[1], "search": "none", "guarantee": "imported", "scores": scores}
        made[direction] = about, _parts(lists, positives_of(direction, pairs, len(lists.ids)), candidates, both)
    return write_table(output, provenance, made, pairs, write=_write_lists)


def _check_sizes(
    foreign: Mapping[Direction, ForeignLists], positives: Integer[np.ndarray, "*shape"], images: int, captions: int
) -> None:
    image_of = positives if positives.ndim == 1 else np.full(captions, -1)
    if len(image_of) != captions:
        raise ValueError(
            f"{foreign['t2i'].source} has lists for {captions} captions, and {len(image_of)} are paired with images."
        )
    if len(outside := np.flatnonzero((image_of < -1) | (image_of >= images))):
        raise ValueError(
            f"caption {outside[0]} is paired with image {image_of[outside[0]]}, and {foreign['i2t'].source} has lists "
            f"for images 0 to {images - 1}."
        )


def _parts(
    foreign: ForeignLists, positives: Positives, candidates: int, vectors: Sequence[Matrix] | None
) -> Iterator[tuple[NegativeLists, int]]:
    """Iterate over blocks of lists, with their number of own positives; `vectors` are of anchors and candidates."""
    for start, stop in blocks(len(foreign.ids), GROUP_ROWS):
        ids, rows = _checked_ids(foreign, start, stop, candidates), np.arange(stop - start)
        own = positives.rows(rows + start)
        own_keys = pair_keys(np.repeat(rows, np.diff(own.offsets)), own.ids, candidates)
        is_own = (ids >= 0) & is_among(pair_keys(rows[:, None], ids, candidates), own_keys)
        ids[is_own] = -1
        scores, positive = np.full(ids.shape, np.nan, dtype=np.float32), np.full(len(ids), np.nan, dtype=np.float32)
        real = ids >= 0
        if vectors is not None:
            anchors, others = vectors[0][start:stop], vectors[1]
            scores[real] = exact_scores(anchors, others, offsets_of(real.sum(axis=1)), ids[real])
            positive = own.lowest(exact_scores(anchors, others, own.offsets, own.ids))
        elif foreign.scores is not None:
            scores[real] = foreign.scores[start:stop][real]
        if vectors is not None or foreign.scores is not None:
            ids, scores = in_table_order(ids, scores)
        yield NegativeLists(ids, scores, positive).keep(ids >= 0), int(is_own.sum())


def _checked_ids(foreign: ForeignLists, start: int, stop: int, candidates: int) -> Int32[np.ndarray, "anchors h"]:
    ids = np.asarray(foreign.ids[start:stop])
    outside = (ids < -1) | (ids >= candidates)
    if outside.any():
        row, place = np.argwhere(outside)[0]
        raise ValueError(
            f"{foreign.source}: row {start + row} lists {ids[row, place]}, and there are candidates 0 to "
            f"{candidates - 1}; the lists are of other data, or the pairs are."
        )
    ordered = np.sort(ids, axis=1)
    if (twice := ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)).any():
        raise ValueError(f"{foreign.source}: row {start + int(twice.argmax())} lists a candidate twice.")
    return ids.astype(np.int32)


def _write_lists(path: Path, footer: Mapping[str, Any], parts: Iterable[tuple[NegativeLists, int]]) -> dict[str, Any]:
    content, rows, dropped, empty = ContentHash(), 0, 0, 0
    with list_writer(path, footer) as writer:
        for lists, own in parts:
            writer.write_table(to_arrow(lists, rows).cast(writer.schema))
            content.add(lists)
            rows += len(lists)
            dropped += own
            empty += int((lists.lengths == 0).sum())
    figures = {"own_positives_left_out": dropped, "anchors_without_negatives": empty}
    return {"anchors": rows, "sha256": content.hexdigest(), **figures}
