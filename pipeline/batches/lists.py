"""Pairs of a table that should share a batch, pairs that must not, what batches hold of both, and batches as files.

Batches are written as `epoch-000.parquet` and so on (docs/formats/table.md), and as webdataset's shards, which hold an
epoch in order: every `batch_size` samples are a batch. A sample is an image file unchanged, the caption in `.txt`, and
in `.json` the rows: image_id, caption_id and batch. `manifest.json` says how the batches were made, from which lists
(`table_sha256`), and how hard they are.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Int32, Int64, Integer

from aoq.pipeline.files import file_sha256
from aoq.pipeline.search.positives import with_itself
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.files import write_manifest
from aoq.pipeline.tables.pairs import Pairs, is_among, listed_keys, pair_keys
from aoq.pipeline.tables.screens.view import EXCLUDED, View
from aoq.pipeline.tables.table import NegativeTable

MEASURED = 200
SAMPLES = 10_000
"""Approximate number of samples in a shard, which holds whole batches."""


@dataclass(frozen=True)
class MeetingLists:
    """Pairs of an epoch, each anchor's hard negatives, hardest first (or -1), and pairs that must not share a batch."""

    pairs: Pairs
    i2t: Int32[np.ndarray, "images h"]
    t2i: Int32[np.ndarray, "captions g"]
    kept_apart: Int64[np.ndarray, " keys"]
    """Ascending `pair_keys` of images and captions that match, or may match."""

    def match(self, images: np.ndarray, captions: np.ndarray) -> Bool[np.ndarray, "*pairs"]:
        """Mark the pairs that must not share a batch."""
        return is_among(pair_keys(images, captions, len(self.t2i)), self.kept_apart)

    def matching_cells(self, batch: Integer[np.ndarray, "size 2"]) -> Bool[np.ndarray, "size size"]:
        """Mark where the image of a pair matches the caption of another pair of the batch."""
        cells = self.match(batch[:, :1], batch[None, :, 1])
        np.fill_diagonal(cells, False)
        return cells


def meeting_lists(
    table: NegativeTable,
    pairs: Pairs,
    *,
    true: Pairs | None = None,
    view: View | None = None,
    ranks: tuple[int, int] | None = None,
) -> MeetingLists:
    """Take the pairs that should share a batch: each anchor and its negatives of these ranks, after the screen.

    `ranks` are [start, stop) of captions, from 0, by default all; those of images are scaled down by images / captions,
    at least one. Suspected negatives are kept apart, as are true pairs: `pairs`, or `true`, with copies of photographs.
    """
    true = pairs if true is None else true
    if table.is_one_set:
        true = with_itself(true, len(table.i2t))
    captions = len(table.t2i)
    apart = [pair_keys(true[:, 0], true[:, 1], captions)]
    lists = {}
    for direction in DIRECTIONS:
        ids = table[direction].negative_ids
        places = _places(direction, ranks, (len(table.i2t), captions), ids.shape[1])
        lists[direction] = ids[:, places]
        if view is not None:
            flags = view[direction].flags
            lists[direction] = np.where(flags[:, places] == 0, lists[direction], -1)
            if direction in table.directions:
                # Negatives left out by rank or score alone are not suspected.
                anchors, suspected = np.nonzero((ids >= 0) & (flags & ~np.uint32(EXCLUDED) != 0))
                apart.append(listed_keys(direction, anchors, ids[anchors, suspected], captions))
    return MeetingLists(pairs, lists["i2t"], lists["t2i"], np.unique(np.concatenate(apart)))


def _places(direction: Direction, ranks: tuple[int, int] | None, sizes: tuple[int, int], depth: int) -> slice:
    if ranks is None:
        return slice(0, depth)
    start, stop = ranks
    if not 0 <= start < stop:
        raise ValueError(f"ranks are START:STOP with 0 <= START < STOP; got {start}:{stop}.")
    images, captions = sizes
    if direction == "t2i" and images < captions:
        start, stop = (round(rank * images / captions) for rank in ranks)
        stop = max(stop, start + 1)
    if depth and start >= depth:
        raise ValueError(
            f"ranks {ranks[0]}:{ranks[1]} start beyond the table's {direction} lists, which have {depth} negatives; "
            "lower them, or mine more."
        )
    return slice(start, min(stop, depth))


@dataclass(frozen=True)
class MeetingFigures:
    """In-batch negatives of the anchors of one direction."""

    hardest_rank: float
    """Median rank of the hardest negative, from 1; the depth plus 1 if none is listed."""
    listed: float
    """Mean number of an anchor's listed negatives in its batch."""
    none_listed: float
    """Fraction of anchors without a listed negative in their batch."""


@dataclass(frozen=True)
class Meetings:
    batches: int
    """Number of batches measured."""
    directions: dict[Direction, MeetingFigures]
    may_match: float
    """Mean number per batch of images and captions of different pairs that match, or may match."""


def measure_meetings(
    table: NegativeTable, lists: MeetingLists, batches: Sequence[Integer[np.ndarray, "_ 2"]], rng: np.random.Generator
) -> Meetings:
    """Measure batches of pairs (image, caption), at most 200 of them, chosen at random."""
    batches = [batches[number] for number in rng.permutation(len(batches))[:MEASURED]]
    figures = {}
    for direction in table.directions:
        depth = table[direction].h
        ranks = [ranks_met(table, direction, batch) for batch in batches]
        hardest = np.concatenate([one.min(axis=1) for one in ranks])
        listed = np.concatenate([(one < depth).sum(axis=1) for one in ranks])
        median, none_listed = float(np.median(hardest)), float((listed == 0).mean())
        figures[direction] = MeetingFigures(median + 1, float(listed.mean()), none_listed)
    cells = [int(lists.matching_cells(batch).sum()) for batch in batches]
    return Meetings(len(batches), figures, float(np.mean(cells)))


def ranks_met(
    table: NegativeTable, direction: Direction, batch: Integer[np.ndarray, "size 2"]
) -> Int64[np.ndarray, "size size"]:
    """Return the rank of each candidate of a batch in each anchor's list, from 0; the depth if it is not listed."""
    anchors, candidates = batch.T if direction == "i2t" else batch.T[::-1]
    listed: Int32[np.ndarray, "size h"] = table[direction].negative_ids[anchors]
    there, which = np.unique(candidates, return_inverse=True)
    places = np.minimum(np.searchsorted(there, listed), len(there) - 1)
    ranks = np.full((len(anchors), len(there)), listed.shape[1])
    anchor, rank = np.nonzero(there[places] == listed)
    ranks[anchor, places[anchor, rank]] = rank
    return ranks[:, which]


def write_batches(
    folder: Path,
    epochs: Iterable[Sequence[Integer[np.ndarray, "_ 2"]]],
    *,
    ids: Mapping[str, Sequence[str]],
    samples: tuple[Sequence[str], Sequence[str]] | None,
    about: Mapping[str, Any],
) -> None:
    """Write the batches of each epoch, pairs (image, caption), and how they were made (`about`) to the new folder.

    `samples` are the file of each picture, and the captions; with them, shards are written too.
    """
    folder.mkdir()
    hashes = {}
    for number, batches in enumerate(epochs):
        path, pairs = folder / f"epoch-{number:03d}.parquet", np.concatenate(batches)
        columns: dict[str, Any] = {
            "batch": np.repeat(np.arange(len(batches), dtype=np.int32), [len(batch) for batch in batches]),
            "image_id": pairs[:, 0].astype(np.int32),
            "caption_id": pairs[:, 1].astype(np.int32),
        }
        for name, side, rows in (("image", "images", pairs[:, 0]), ("caption", "captions", pairs[:, 1])):
            if side in ids:
                columns[name] = pa.array(ids[side], pa.string()).take(pa.array(rows))
        pq.write_table(pa.table(columns), path, compression="zstd")
        hashes[path.name] = file_sha256(path)
        if samples is not None:
            _write_shards(path.with_suffix(""), batches, *samples)
    write_manifest(folder, {"format_version": 1, **about, "files": hashes})


def _write_shards(
    folder: Path, batches: Sequence[Integer[np.ndarray, "_ 2"]], pictures: Sequence[str], captions: Sequence[str]
) -> None:
    folder.mkdir()
    each = max(1, SAMPLES // len(batches[0]))
    for first in range(0, len(batches), each):
        with tarfile.open(folder / f"{first // each:06d}.tar", "w") as shard:
            for number, batch in enumerate(batches[first : first + each], start=first):
                for place, (image, caption) in enumerate(batch.tolist()):
                    key, rows = f"{number:06d}-{place:05d}", {"image_id": image, "caption_id": caption, "batch": number}
                    picture = Path(pictures[image])
                    _add(shard, f"{key}{picture.suffix.lower()}", picture.read_bytes())
                    _add(shard, f"{key}.txt", captions[caption].encode())
                    _add(shard, f"{key}.json", json.dumps(rows).encode())


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    about = tarfile.TarInfo(name)
    about.size = len(content)
    shard.addfile(about, io.BytesIO(content))
