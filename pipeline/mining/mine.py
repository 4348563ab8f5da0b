"""The global similarity pass: embeddings in, a negative table out, one row block of anchors at a time."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32, Int32

from pipeline.artifact import write_atomically
from pipeline.mining.exact import Positives, exact_negatives, require_candidates
from pipeline.mining.search import SEARCHES
from pipeline.mining.table import (
    DIRECTIONS,
    FORMAT_VERSION,
    MANIFEST,
    Direction,
    NegativeLists,
    read_lists,
    to_arrow,
    write_lists,
)

logger = logging.getLogger(__name__)

SHARD_ROWS = 4096
"""Anchors a shard: what a crash can lose. It does not shape the table, so it is in no key."""


@dataclass(frozen=True)
class Shard:
    """One row block of one direction: an idempotent unit of work, file in, file out."""

    direction: Direction
    start: int
    stop: int
    h: int
    search: str
    output: Path


def mine(
    images: Float32[np.ndarray, "images D"],
    captions: Float32[np.ndarray, "captions D"],
    image_of: Int32[np.ndarray, " captions"],
    *,
    h_captions: int,
    h_images: int,
    search: str,
    provenance: Mapping[str, Any],
    work: Path,
    output: Path,
    shard_rows: int = SHARD_ROWS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the table to the folder `output`; finished shards in `work` are kept and used.

    `provenance` (dataset fingerprint, teacher, ...) goes into every footer and the manifest.
    """
    order = np.argsort(image_of, kind="stable").astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(image_of, minlength=len(images)))]).astype(np.int64)
    sides = {
        "i2t": (images, captions, Positives(order, offsets), h_captions),
        "t2i": (
            captions,
            images,
            Positives(image_of, np.arange(len(image_of) + 1, dtype=np.int64)),
            h_images,
        ),
    }
    for option, (_, candidates, positives, h) in zip(("h_captions", "h_images"), sides.values(), strict=True):
        require_candidates(h, positives, len(candidates), option=f"mining.{option}")
    work.mkdir(parents=True, exist_ok=True)
    shards = [
        Shard(
            direction,
            start,
            min(start + shard_rows, len(anchors)),
            h,
            search,
            work / f"{direction}-{start:09d}.parquet",
        )
        for direction in DIRECTIONS
        for anchors, _, _, h in [sides[direction]]
        for start in range(0, len(anchors), shard_rows)
    ]
    if (output / MANIFEST).is_file():  # written last: an earlier run was cut short between the table and the clean-up
        shutil.rmtree(work)
        return
    for done, shard in enumerate(shards):
        anchors, candidates, positives, _ = sides[shard.direction]
        mine_shard(shard, anchors, candidates, positives)
        progress(done + 1, len(shards))
    _write_table(output, shards, dict(provenance))
    shutil.rmtree(work)


def mine_shard(
    shard: Shard,
    anchors: Float32[np.ndarray, "anchors D"],
    candidates: Float32[np.ndarray, "candidates D"],
    positives: Positives,
) -> None:
    """Mine one row block, unless its file is there already and sound."""
    if _is_sound(shard):
        return
    rows = slice(shard.start, shard.stop)
    ids, scores, positive_scores = exact_negatives(
        np.ascontiguousarray(anchors[rows]),
        candidates,
        positives.rows(shard.start, shard.stop),
        h=shard.h,
        search=SEARCHES[shard.search],
    )
    part = to_arrow(NegativeLists(ids, scores, positive_scores), first_anchor=shard.start)
    temporary = shard.output.with_suffix(".tmp")
    write_lists(temporary, [part], {"direction": shard.direction, "start": shard.start, "h": shard.h})
    os.replace(temporary, shard.output)


def _is_sound(shard: Shard) -> bool:
    if not shard.output.is_file():
        return False
    try:
        part = pq.read_table(shard.output, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        logger.warning("%s is damaged (%s); mining it again", shard.output, error)
        return False
    return len(part) == shard.stop - shard.start and part.schema.field("scores").type.list_size == shard.h


def _write_table(output: Path, shards: list[Shard], provenance: dict[str, Any]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    manifest: dict[str, Any] = {"format_version": FORMAT_VERSION, **provenance, "directions": {}}
    for direction in DIRECTIONS:
        own = [shard for shard in shards if shard.direction == direction]
        about = {"direction": direction, "h": own[0].h, "search": own[0].search, "guarantee": "exact"}
        parts = [pq.read_table(shard.output, page_checksum_verification=True) for shard in own]
        path = output / f"{direction}.parquet"
        write_lists(path, parts, {"format_version": FORMAT_VERSION, **provenance, **about})
        manifest["directions"][direction] = {**about, **_statistics(path)}
    write_atomically(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def _statistics(path: Path) -> dict[str, Any]:
    """A few figures people look at first: how hard the negatives are beside the positives."""
    lists = read_lists(path)
    return {
        "anchors": len(lists),
        "first_score_mean": round(float(np.nanmean(lists.scores[:, 0])), 4),
        "last_score_mean": round(float(np.nanmean(lists.scores[:, -1])), 4),
        "positive_score_mean": round(float(lists.positive_scores.mean()), 4),
        "above_positive_share": round(float((lists.scores[:, 0] > lists.positive_scores).mean()), 4),
    }
