"""The candidates of a table in the order of a slow model's scores.

The pairs of both directions' shortlists are scored once each, in units that survive a crash. What the shortlists lack
is estimated: a few anchors are searched in full by the slow model.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.mining.rescore import (
    ROUNDING,
    Rescoring,
    best_scores,
    caption_blocks,
    image_blocks,
    read_scores,
    rescoring_units,
)
from aoq.pipeline.mining.shortlist import Block
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.search.store import Folder
from aoq.pipeline.tables.files import MANIFEST
from aoq.pipeline.tables.pairs import paired
from aoq.pipeline.tables.writing import Made, as_tables, write_table

logger = logging.getLogger(__name__)


def rerank(
    job: Rescoring,
    *,
    provenance: Mapping[str, Any],
    work: Path,
    output: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the table to the folder `output`; finished units in `work` are kept and used."""
    if (output / MANIFEST).is_file():  # written last: an earlier run was cut short between the table and the clean-up
        shutil.rmtree(work, ignore_errors=True)
        return
    job.model.eval()
    work.mkdir(parents=True, exist_ok=True)
    units = rescoring_units(job)
    for done, unit in enumerate(units, start=1):
        unit.do(job, Folder(work))
        progress(done, len(units))
    made = {direction: _made(job, direction, work) for direction in DIRECTIONS}
    write_table(output, provenance, made, paired(job.shortlist.image_of))
    shutil.rmtree(work)


def _made(job: Rescoring, direction: Direction, work: Path) -> Made:
    recall = measured_recall(job, direction, work)
    anchors = len(job.checked(direction))
    logger.info(
        "%s: of the teacher's own top %d the lists have %.1f %% (%d anchors searched in full)",
        direction,
        job.h(direction),
        100 * recall,
        anchors,
    )
    about = {"h": job.h(direction), "search": "rerank", "guarantee": "reranked", "recall": round(recall, 6)}
    parts = (_block_lists(job, direction, block, work) for block in _anchor_blocks(job, direction))
    return {**about, "recall_anchors": anchors}, as_tables(parts)


def measured_recall(job: Rescoring, direction: Direction, work: Path) -> float:
    """The share of a checked anchor's true top h that its list has, on average over the checked anchors."""
    best, anchors = best_scores(job, direction, work), job.checked(direction)
    wanted = np.isfinite(best).sum(axis=1)
    last = np.take_along_axis(best, np.maximum(wanted - 1, 0)[:, None], axis=1)
    found = [
        _block_lists(job, direction, block, work).scores[anchors[inside] - block[0]]
        for block in _anchor_blocks(job, direction)
        if (inside := (anchors >= block[0]) & (anchors < block[1])).any()
    ]
    kept = (np.concatenate(found) >= last - ROUNDING).sum(axis=1)
    return float(np.where(wanted > 0, np.minimum(kept, wanted) / np.maximum(wanted, 1), 1.0).mean())


def _block_lists(job: Rescoring, direction: Direction, block: Block, work: Path) -> NegativeLists:
    images = [block] if direction == "i2t" else image_blocks(job.shortlist)
    captions = [block] if direction == "t2i" else caption_blocks(job.shortlist)
    keys, scores = read_scores(work, images, captions)
    listed = job.shortlist.row_keys(direction, block)
    image, caption = np.divmod(listed, job.shortlist.anchors("t2i"))
    ids = np.where(listed < 0, -1, caption if direction == "i2t" else image).astype(np.int32)
    rescored = np.where(listed < 0, np.float32(np.nan), scores[np.searchsorted(keys, listed)])
    return NegativeLists(*_sorted(ids, rescored, job.h(direction)), _positives(job, direction, block, keys, scores))


def _sorted(
    ids: Int32[np.ndarray, "anchors depth"], scores: Float32[np.ndarray, "anchors depth"], h: int
) -> tuple[Int32[np.ndarray, "anchors h"], Float32[np.ndarray, "anchors h"]]:
    """Score falling, then id rising; padding last."""
    order = np.lexsort((ids, np.where(ids < 0, np.float32(np.inf), -scores)))[:, :h]
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1)


def _positives(
    job: Rescoring,
    direction: Direction,
    block: Block,
    keys: Int64[np.ndarray, " pairs"],
    scores: Float32[np.ndarray, " pairs"],
) -> Float32[np.ndarray, " anchors"]:
    """The score of each anchor's lowest-scoring positive."""
    image_of = job.shortlist.image_of
    within = (image_of >= block[0]) & (image_of < block[1])
    captions = np.arange(*block) if direction == "t2i" else np.flatnonzero(within)
    own = scores[np.searchsorted(keys, job.shortlist.key(image_of[captions], captions))]
    if direction == "t2i":
        return own
    lowest = np.full(block[1] - block[0], np.inf, dtype=np.float32)
    np.minimum.at(lowest, image_of[captions] - block[0], own)
    return lowest


def _anchor_blocks(job: Rescoring, direction: Direction) -> list[Block]:
    return image_blocks(job.shortlist) if direction == "i2t" else caption_blocks(job.shortlist)
