"""Another program's lists as a table of ours.

Own positives are taken out. With vectors every pair is scored exactly and the order is ours; without, the scores are
those that came with the lists, or none at all (null), and then the order is as it came.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.search.lists import NegativeLists, from_arrow, to_arrow
from aoq.pipeline.search.problem import DIRECTIONS, OTHER, Direction, Positives, blocks
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.exchange.raw import RawLists
from aoq.pipeline.tables.files import FORMAT_VERSION, MANIFEST, ContentHash, list_writer, write_positives
from aoq.pipeline.tables.pairs import is_among, pair_keys, paired, positives_of

GROUP_ROWS = 1024
"""Official lists are 2000 long."""
Matrix = Float32[np.ndarray, "_ D"]


@dataclass(frozen=True)
class Side:
    """One direction: the lists, who is no negative of whom, and the vectors if there are any."""

    raw: RawLists
    positives: Positives
    candidates: int
    vectors: tuple[Matrix, Matrix] | None
    """Of anchors and of candidates."""

    @property
    def scores(self) -> str:
        """Whose the scores are: `exact` dot products, the `source`'s, or `none`."""
        if self.vectors is not None:
            return "exact"
        return "none" if self.raw.scores is None else "source"

    def block(self, start: int, stop: int) -> tuple[NegativeLists, int]:
        """The lists of some anchors, and how many own positives were among them."""
        ids = self._checked_ids(start, stop)
        own = self.positives.rows(np.arange(start, stop))
        is_own = self._is_own(ids, own)
        ids[is_own] = -1
        scores = self._scores(ids, start, stop)
        order = np.lexsort((ids, -scores, ids < 0)) if self.scores != "none" else np.argsort(ids < 0, kind="stable")
        lists = NegativeLists(
            np.take_along_axis(ids, order, axis=1),
            np.take_along_axis(scores, order, axis=1),
            self._lowest_positives(own, start, stop),
        )
        return lists, int(is_own.sum())

    def _is_own(self, ids: Int32[np.ndarray, "anchors h"], own: Positives) -> Bool[np.ndarray, "anchors h"]:
        owners = np.repeat(np.arange(len(ids)), np.diff(own.offsets))
        rows, places = np.nonzero(ids >= 0)
        keys = pair_keys(rows, ids[rows, places], self.candidates)
        found = np.zeros(ids.shape, dtype=np.bool_)
        found[rows, places] = is_among(keys, np.sort(pair_keys(owners, own.ids, self.candidates)))
        return found

    def _checked_ids(self, start: int, stop: int) -> Int32[np.ndarray, "anchors h"]:
        ids = np.asarray(self.raw.ids[start:stop])
        if (outside := ((ids < -1) | (ids >= self.candidates)).any(axis=1)).any():
            row = int(outside.argmax())
            wrong = ids[row][(ids[row] < -1) | (ids[row] >= self.candidates)][0]
            raise ValueError(
                f"{self.raw.source}: row {start + row} lists {wrong}, and there are candidates 0 to "
                f"{self.candidates - 1}; the lists are of other data, or the pairs are."
            )
        ordered = np.sort(ids, axis=1)
        if (twice := ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)).any():
            raise ValueError(f"{self.raw.source}: row {start + int(twice.argmax())} lists a candidate twice.")
        return ids.astype(np.int32)

    def _scores(self, ids: Int32[np.ndarray, "anchors h"], start: int, stop: int) -> Float32[np.ndarray, "anchors h"]:
        scores = np.full(ids.shape, np.nan, dtype=np.float32)
        real = ids >= 0
        if self.vectors is not None:
            anchors, candidates = self.vectors
            offsets: Int64[np.ndarray, " anchors_and_one"] = np.concatenate([[0], np.cumsum(real.sum(axis=1))])
            scores[real] = exact_scores(anchors[start:stop], candidates, offsets, ids[real])
        elif self.raw.scores is not None:
            scores[real] = self.raw.scores[start:stop][real]
        return scores

    def _lowest_positives(self, own: Positives, start: int, stop: int) -> Float32[np.ndarray, " anchors"]:
        lowest = np.full(stop - start, np.nan, dtype=np.float32)
        has = np.diff(own.offsets) > 0
        if self.vectors is not None and has.any():
            anchors, candidates = self.vectors
            scores = exact_scores(anchors[start:stop], candidates, own.offsets, own.ids)
            lowest[has] = np.minimum.reduceat(scores, own.offsets[:-1][has])
        return lowest


def import_lists(
    raw: Mapping[Direction, RawLists],
    image_of: Int32[np.ndarray, " captions"],
    vectors: Mapping[str, Matrix] | None,
    *,
    provenance: Mapping[str, Any],
    output: Path,
) -> dict[str, Any]:
    """Write the table to the new folder `output`; its manifest."""
    _check_sizes(raw, image_of, vectors)
    output.mkdir()
    pairs = paired(image_of)
    write_positives(output, pairs)
    header = {"format_version": FORMAT_VERSION, **provenance}
    manifest: dict[str, Any] = {**header, "directions": {}}
    for direction in DIRECTIONS:
        candidates = len(raw[OTHER[direction]].ids)
        both = None
        if vectors is not None:
            both = (vectors["images"], vectors["captions"])
            both = both if direction == "i2t" else (both[1], both[0])
        side = Side(raw[direction], positives_of(direction, pairs, len(raw[direction].ids)), candidates, both)
        about = {"direction": direction, "h": side.raw.ids.shape[1], "search": "none", "guarantee": "imported"}
        about["scores"] = side.scores
        figures = _write_side(side, output / f"{direction}.parquet", {**header, **about})
        manifest["directions"][direction] = {**about, **figures}
    write_atomically(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return manifest


def _write_side(side: Side, path: Path, footer: Mapping[str, Any]) -> dict[str, Any]:
    content, dropped, empty = ContentHash(), 0, 0
    with list_writer(path, side.raw.ids.shape[1], footer) as writer:
        for lists, own, first in _blocks(side):
            group = to_arrow(lists, first)
            writer.write_table(group.cast(writer.schema))
            content.add(from_arrow(group))
            dropped += own
            empty += int((lists.negative_ids[:, 0] < 0).sum())
    return {
        "anchors": len(side.raw.ids),
        "sha256": content.hexdigest(),
        "own_positives_left_out": dropped,
        "anchors_without_negatives": empty,
    }


def _blocks(side: Side) -> Iterator[tuple[NegativeLists, int, int]]:
    for start, stop in blocks(len(side.raw.ids), GROUP_ROWS):
        lists, own = side.block(start, stop)
        yield lists, own, start


def _check_sizes(
    raw: Mapping[Direction, RawLists], image_of: Int32[np.ndarray, " captions"], vectors: Mapping[str, Matrix] | None
) -> None:
    images, captions = len(raw["i2t"].ids), len(raw["t2i"].ids)
    if len(image_of) != captions:
        raise ValueError(
            f"{raw['t2i'].source} has lists for {captions} captions, and {len(image_of)} are paired with images."
        )
    if len(outside := np.flatnonzero((image_of < -1) | (image_of >= images))):
        raise ValueError(
            f"caption {outside[0]} is paired with image {image_of[outside[0]]}, and {raw['i2t'].source} has lists for "
            f"images 0 to {images - 1}."
        )
    if vectors is not None and (found := (len(vectors["images"]), len(vectors["captions"]))) != (images, captions):
        raise ValueError(
            f"there are vectors of {found[0]} images and {found[1]} captions, and lists for {images} and {captions}."
        )
