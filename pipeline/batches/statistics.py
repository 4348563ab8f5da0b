"""Hardness of the negatives within batches, and the frequency of pairs that may match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64, Integer

from aoq.pipeline.batches.lists import MeetingLists
from aoq.pipeline.batches.order import matching_cells
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.table import NegativeTable

BATCHES = 200
"""Largest number of batches measured."""


@dataclass(frozen=True)
class Met:
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
    directions: dict[Direction, Met]
    may_match: float
    """Mean number per batch of images and captions of different pairs that match, or may match."""


def meetings_of(
    table: NegativeTable,
    lists: MeetingLists,
    batches: Sequence[Integer[np.ndarray, "_ 2"]],
    rng: np.random.Generator,
) -> Meetings:
    """Measure batches of pairs (image, caption), at most 200 of them, chosen at random."""
    batches = [batches[number] for number in rng.permutation(len(batches))[:BATCHES]]
    met = {}
    for direction in table.directions:
        depth = table[direction].h
        ranks = [ranks_met(table, direction, batch) for batch in batches]
        hardest = np.concatenate([one.min(axis=1) for one in ranks])
        listed = np.concatenate([(one < depth).sum(axis=1) for one in ranks])
        met[direction] = Met(float(np.median(hardest)) + 1, float(listed.mean()), float((listed == 0).mean()))
    cells = [int(matching_cells(lists, batch[None]).sum()) for batch in batches]
    return Meetings(len(batches), met, float(np.mean(cells)))


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
