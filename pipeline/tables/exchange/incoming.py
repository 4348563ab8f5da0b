"""Another program's lists as a table of ours.

Own positives are taken out. With vectors every pair is scored exactly and the order is ours; without, the scores are
those that came with the lists, or none at all (null), and then the order is as it came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int32, Integer

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.search.lists import NegativeLists, in_table_order, to_arrow
from aoq.pipeline.search.problem import DIRECTIONS, OTHER, Direction, Positives, blocks
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.exchange.official import open_official
from aoq.pipeline.tables.exchange.outgoing import check_ids
from aoq.pipeline.tables.exchange.trec import Rows, measure_run, read_run
from aoq.pipeline.tables.files import FORMAT_VERSION, MANIFEST, ContentHash, list_writer, write_positives
from aoq.pipeline.tables.pairs import is_among, pair_keys, paired, positives_of

GROUP_ROWS = 1024
"""Official lists are 2000 long."""
Matrix = Float32[np.ndarray, "_ D"]


@dataclass(frozen=True)
class ForeignLists:
    """One direction as it came; -1 stands where a list is shorter than others."""

    source: str
    ids: Integer[np.ndarray, "anchors h"]
    scores: Float32[np.ndarray, "anchors h"] | None = None


def find_files(source: Path) -> dict[Direction, Path]:
    """The images' lists, and the captions' beside them."""
    if not source.name.startswith("i2t"):
        raise ValueError(
            f"{source} is not the name of a file with images' lists; name i2t_NAME.npy or i2t_NAME.trec, beside which "
            "the captions' lists lie as t2i_NAME.npy or t2i_NAME.trec."
        )
    files: dict[Direction, Path] = {"i2t": source, "t2i": source.with_name("t2i" + source.name.removeprefix("i2t"))}
    for path in files.values():
        if not path.is_file():
            raise FileNotFoundError(f"{path} is no file; a table needs the lists of images (i2t) and captions (t2i).")
    return files


def open_foreign_lists(
    files: Mapping[Direction, Path], image_ids: Sequence[str] | None, captions: int | None, work: Path
) -> dict[Direction, ForeignLists]:
    """Official `.npy` lists as they are; TREC runs by way of files in the folder `work`.

    A run has rows for all `image_ids` and the count of `captions`; where these are not known, for as many as it names.
    """
    if files["i2t"].suffix == ".npy":
        return {direction: ForeignLists(str(path), open_official(path)) for direction, path in files.items()}
    if image_ids is not None:
        check_ids(image_ids)
    images: Rows = None if image_ids is None else {name: row for row, name in enumerate(image_ids)}
    i2t, t2i = measure_run(files["i2t"], images, None), measure_run(files["t2i"], None, images)
    image_count = max(i2t.queries, t2i.documents) if image_ids is None else len(image_ids)
    caption_count = max(t2i.queries, i2t.documents) if captions is None else captions
    if t2i.queries > caption_count:
        raise ValueError(
            f"{files['t2i']} has a list for caption {t2i.queries - 1}, and there are captions 0 to {caption_count - 1}."
        )
    return {
        "i2t": ForeignLists(str(files["i2t"]), *read_run(files["i2t"], images, None, image_count, i2t.longest, work)),
        "t2i": ForeignLists(str(files["t2i"]), *read_run(files["t2i"], None, images, caption_count, t2i.longest, work)),
    }


def import_lists(
    given: Mapping[Direction, ForeignLists],
    image_of: Int32[np.ndarray, " captions"],
    vectors: Mapping[str, Matrix] | None,
    *,
    provenance: Mapping[str, Any],
    output: Path,
) -> dict[str, Any]:
    """Write the table to the new folder `output`; its manifest."""
    _check_sizes(given, image_of, vectors)
    output.mkdir()
    pairs = paired(image_of)
    write_positives(output, pairs)
    header = {"format_version": FORMAT_VERSION, **provenance}
    manifest: dict[str, Any] = {**header, "directions": {}}
    for direction in DIRECTIONS:
        lists, candidates = given[direction], len(given[OTHER[direction]].ids)
        sides = ("images", "captions") if direction == "i2t" else ("captions", "images")
        both = None if vectors is None else (vectors[sides[0]], vectors[sides[1]])
        side = _Side(lists, positives_of(direction, pairs, len(lists.ids)), candidates, both)
        about = {"direction": direction, "h": lists.ids.shape[1], "search": "none", "guarantee": "imported"}
        about["scores"] = side.whose_scores
        figures = _write_side(side, output / f"{direction}.parquet", {**header, **about})
        manifest["directions"][direction] = {**about, **figures}
    write_atomically(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    return manifest


def _write_side(side: _Side, path: Path, footer: Mapping[str, Any]) -> dict[str, Any]:
    content, dropped, empty = ContentHash(), 0, 0
    with list_writer(path, footer["h"], footer) as writer:
        for start, stop in blocks(len(side.given.ids), GROUP_ROWS):
            lists, own = side.block(start, stop)
            writer.write_table(to_arrow(lists, start).cast(writer.schema))
            content.add(lists)
            dropped += own
            empty += int((lists.lengths == 0).sum())
    return {
        "anchors": len(side.given.ids),
        "sha256": content.hexdigest(),
        "own_positives_left_out": dropped,
        "anchors_without_negatives": empty,
    }


@dataclass(frozen=True)
class _Side:
    """One direction: the lists, who is no negative of whom, and the vectors of anchors and candidates, if any."""

    given: ForeignLists
    positives: Positives
    candidates: int
    vectors: tuple[Matrix, Matrix] | None

    @property
    def whose_scores(self) -> str:
        """`exact` dot products, the `source`'s, or `none`."""
        if self.vectors is not None:
            return "exact"
        return "none" if self.given.scores is None else "source"

    def block(self, start: int, stop: int) -> tuple[NegativeLists, int]:
        """The lists of some anchors, and how many own positives were among them."""
        ids = self._checked_ids(start, stop)
        own = self.positives.rows(np.arange(start, stop))
        is_own = self._is_own(ids, own)
        ids[is_own] = -1
        scores, positive = np.full(ids.shape, np.nan, dtype=np.float32), np.full(len(ids), np.nan, dtype=np.float32)
        real = ids >= 0
        if self.vectors is not None:
            anchors, candidates = self.vectors[0][start:stop], self.vectors[1]
            offsets = np.concatenate([[0], np.cumsum(real.sum(axis=1))])
            scores[real] = exact_scores(anchors, candidates, offsets, ids[real])
            positive = own.lowest(exact_scores(anchors, candidates, own.offsets, own.ids))
        elif self.given.scores is not None:
            scores[real] = self.given.scores[start:stop][real]
        else:
            return NegativeLists(ids, scores, positive).keep(real), int(is_own.sum())
        return NegativeLists(*in_table_order(ids, scores), positive), int(is_own.sum())

    def _is_own(self, ids: Int32[np.ndarray, "anchors h"], own: Positives) -> Bool[np.ndarray, "anchors h"]:
        owners = np.repeat(np.arange(len(ids)), np.diff(own.offsets))
        rows, places = np.nonzero(ids >= 0)
        keys = pair_keys(rows, ids[rows, places], self.candidates)
        found = np.zeros(ids.shape, dtype=np.bool_)
        found[rows, places] = is_among(keys, np.sort(pair_keys(owners, own.ids, self.candidates)))
        return found

    def _checked_ids(self, start: int, stop: int) -> Int32[np.ndarray, "anchors h"]:
        ids = np.asarray(self.given.ids[start:stop])
        outside = (ids < -1) | (ids >= self.candidates)
        if outside.any():
            row, place = np.argwhere(outside)[0]
            raise ValueError(
                f"{self.given.source}: row {start + row} lists {ids[row, place]}, and there are candidates 0 to "
                f"{self.candidates - 1}; the lists are of other data, or the pairs are."
            )
        ordered = np.sort(ids, axis=1)
        if (twice := ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)).any():
            raise ValueError(f"{self.given.source}: row {start + int(twice.argmax())} lists a candidate twice.")
        return ids.astype(np.int32)


def _check_sizes(
    given: Mapping[Direction, ForeignLists],
    image_of: Int32[np.ndarray, " captions"],
    vectors: Mapping[str, Matrix] | None,
) -> None:
    images, captions = len(given["i2t"].ids), len(given["t2i"].ids)
    if len(image_of) != captions:
        raise ValueError(
            f"{given['t2i'].source} has lists for {captions} captions, and {len(image_of)} are paired with images."
        )
    if len(outside := np.flatnonzero((image_of < -1) | (image_of >= images))):
        raise ValueError(
            f"caption {outside[0]} is paired with image {image_of[outside[0]]}, and {given['i2t'].source} has lists "
            f"for images 0 to {images - 1}."
        )
    if vectors is not None and (found := (len(vectors["images"]), len(vectors["captions"]))) != (images, captions):
        raise ValueError(
            f"there are vectors of {found[0]} images and {found[1]} captions, and lists for {images} and {captions}."
        )
