"""Exact lists from an approximate search.

The search proposes slightly more candidates than needed. The last proposed score plus the rounding error of float32
bounds all other candidates. A row whose h-th negative does not clear that bound is searched deeper.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Int64

from aoq.pipeline.search.brute_force import search
from aoq.pipeline.search.lists import NegativeLists, to_arrow
from aoq.pipeline.search.problem import Side, blocks
from aoq.pipeline.search.proposals import Heads, Proposals, heads, known_heads
from aoq.pipeline.search.scores import exact_scores

logger = logging.getLogger(__name__)

SLACK = 32
"""Candidates that the first search requests beyond h and the positives."""
FEW = 2**26
"""Products of two numbers that are made exactly sooner than another library is loaded to search for the best."""
PROPOSAL_BYTES = 64
"""Memory per proposed candidate while it is rescored; a search of any depth must fit into memory."""


def exact_heads(side: Side) -> Heads:
    """Find the h best negatives of every anchor, all certified."""
    count, h = len(side.anchors), side.h
    found = Heads(np.empty((count, h), np.int32), np.empty((count, h), np.float32), np.full(count, np.inf, np.float32))
    pending, depth = np.arange(count), side.wanted + SLACK
    while len(pending):
        depth = min(depth, len(side.candidates))
        for start, stop in blocks(len(pending), max(1, side.memory // PROPOSAL_BYTES // depth)):
            rows = pending[start:stop]
            found.put(rows, heads(side.rows(rows), _proposals(side, rows, depth)))
        pending = pending[~found.certified[pending]]
        if len(pending):
            if depth == len(side.candidates):
                raise ValueError(f"{len(pending)} anchors have products that float32 does not hold; mend the vectors.")
            logger.info("%d anchors have near-ties at rank %d; searching them %d deep", len(pending), h, 4 * depth)
        depth *= 4
    return found


def certify(found: Heads, side: Side) -> Heads:
    """Search every row that is not certified again, exactly."""
    rows = np.flatnonzero(~found.certified)
    if len(rows):
        logger.info("%d of %d rows needed a second exact search", len(rows), len(side.anchors))
        few = len(rows) * side.candidates.size <= FEW
        found.put(rows, _score_all(side.rows(rows)) if few else exact_heads(side.rows(rows)))
    return found


def _score_all(side: Side) -> Heads:
    """Find the lists by scoring every candidate exactly."""
    rows, count = len(side.anchors), len(side.candidates)
    offsets, ids = np.arange(rows + 1) * count, np.tile(np.arange(count, dtype=np.int32), rows)
    scores = exact_scores(side.anchors, side.candidates, offsets, ids)
    return known_heads(side, offsets, ids, scores, np.full(rows, -np.inf, np.float32))


def lowest_positives(side: Side) -> Float32[np.ndarray, " anchors"]:
    """Exact score of each anchor's lowest-scoring positive; NaN if it has none."""
    own = side.matches
    return own.lowest(exact_scores(side.anchors, side.candidates, own.offsets, own.ids))


def lists_table(side: Side, found: Heads, first_anchor: int) -> pa.Table:
    """Make the table rows, with bounds, of what a search found."""
    return to_arrow(NegativeLists(found.ids, found.scores, lowest_positives(side), bound=found.bound), first_anchor)


def _proposals(side: Side, rows: Int64[np.ndarray, " some"], depth: int) -> Proposals:
    near, ids = search(side.anchors[rows], side.candidates, depth)
    everything = depth == len(side.candidates)
    unproposed = np.full(len(rows), -np.inf) if everything else near[:, -1].astype(np.float64) + side.rounding_error
    return Proposals(np.arange(len(rows) + 1) * depth, ids.ravel(), near.ravel(), unproposed, side.rounding_error)
