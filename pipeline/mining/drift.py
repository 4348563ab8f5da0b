"""Measure how far a model has drifted from a table that another model, or an earlier state of it, made.

AOQ assumes that there is no drift; [refresh] mines again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float32, Int32, Int64

from aoq.models.base import MatchingModel
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.embedding import SCORED_IMAGES, encode_captions, encode_images
from aoq.pipeline.engine import products_in
from aoq.pipeline.search.lists import NegativeLists, in_table_order
from aoq.pipeline.search.problem import DIRECTIONS, Direction, blocks
from aoq.pipeline.tables.statistics import Difference, difference, share_above_positive
from aoq.pipeline.tables.table import NegativeTable


@dataclass(frozen=True)
class Drift:
    """Differences between one direction's lists and the model's own, on sampled anchors."""

    anchors: int
    lists: Difference
    """Table's lists against the model's own; `most_changed` are rows of the table."""
    above_positive: float | None
    """Fraction of the table's negatives that the model scores at least as high as the anchor's lowest positive."""
    above_positive_then: float | None
    """The same fraction by the table's own scores."""


def measure_drift(
    model: MatchingModel,
    pairs: PairData,
    table: NegativeTable,
    device: torch.device,
    *,
    anchors: int,
    depth: int | None = None,
    progress: Callable[[Direction, int, int], None] = lambda direction, done, total: None,
) -> dict[Direction, Drift]:
    """Search `anchors` of each direction in full with the model, and compare its lists with the table's.

    `progress` counts the candidates of a direction that are scored.
    """
    model.eval()
    drifts = {}
    for direction in DIRECTIONS:
        lists = table[direction]
        cut = lists.h if depth is None else depth
        if not 1 <= cut <= lists.h:
            raise ValueError(f"depth = {cut}, but the {direction} lists hold {lists.h}; give 1 to {lists.h}.")
        rows = np.sort(np.random.default_rng(0).choice(len(lists), min(anchors, len(lists)), replace=False))
        then = lists[rows].head(cut)
        own, now = _search(model, pairs, device, direction, rows, then.negative_ids, partial(progress, direction))
        between = difference(then.negative_ids, own, rows=rows)
        drifts[direction] = Drift(len(rows), between, share_above_positive(now), share_above_positive(then))
    return drifts


@torch.inference_mode()
@products_in("float32")
def _search(
    model: MatchingModel,
    pairs: PairData,
    device: torch.device,
    direction: Direction,
    anchors: Int64[np.ndarray, " anchors"],
    listed: np.ndarray,
    progress: Callable[[int, int], None],
) -> tuple[Int32[np.ndarray, "anchors h"], NegativeLists]:
    """Return the ids of the model's own lists of the anchors, and the table's lists with the model's scores."""
    shape, split = listed.shape, pairs.split
    ids, scores = np.full(shape, -1, np.int32), np.full(shape, -np.inf, np.float32)
    lowest, now = np.full(shape[0], np.inf, np.float32), np.full(shape, np.nan, np.float32)
    done, total = 0, split.caption_count if direction == "i2t" else split.image_count
    for candidates, tile in _tiles(model, pairs, device, direction, anchors):
        sides = (anchors[:, None], candidates) if direction == "i2t" else (candidates, anchors[:, None])
        is_positive = split.are_paired(*sides)
        lowest = np.minimum(lowest, np.where(is_positive, tile, np.inf).min(axis=1))
        place = np.searchsorted(candidates, listed).clip(max=len(candidates) - 1)
        there = candidates[place] == listed
        now[there] = np.take_along_axis(tile, place, axis=1)[there]
        ids = np.concatenate([ids, np.where(is_positive, -1, candidates).astype(np.int32)], axis=1)
        scores = np.concatenate([scores, np.where(is_positive, np.float32(-np.inf), tile)], axis=1)
        ids, scores = (column[:, : shape[1]] for column in in_table_order(ids, scores))
        done += len(candidates)
        progress(done, total)
    return ids, NegativeLists(listed, now, np.where(np.isinf(lowest), np.float32(np.nan), lowest))


def _tiles(
    model: MatchingModel, pairs: PairData, device: torch.device, direction: Direction, anchors: np.ndarray
) -> Iterator[tuple[Int64[np.ndarray, " tile"], Float32[np.ndarray, "anchors tile"]]]:
    """Iterate over candidates, rising, with the anchors' similarities to them."""
    if direction == "i2t":
        codes = encode_images(model, pairs, device, anchors)
        for columns, captions in encode_captions(model, pairs, device):
            order = np.argsort(columns)
            yield columns[order], model.similarity(codes, captions).float().cpu().numpy()[:, order]
        return
    parts = list(encode_captions(model, pairs, device, anchors))
    for start, stop in blocks(pairs.split.image_count, SCORED_IMAGES):
        rows = np.arange(start, stop)
        codes = encode_images(model, pairs, device, rows)
        tile = np.empty((len(anchors), len(rows)), dtype=np.float32)
        for columns, captions in parts:
            tile[np.searchsorted(anchors, columns)] = model.similarity(codes, captions).float().cpu().numpy().T
        yield rows, tile
