"""Similarity of an anchor to the owners of its candidates.

SaHa: From Generator to Embedder (Ju and Lee, arXiv 2508.00955). Retrieved candidates are mapped back to the queries
that own them, the most similar one if there are several; candidates with the least similar owners are kept.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float32

from aoq.pipeline.tables.screens.entries import Entries
from aoq.pipeline.tables.screens.knowledge import Context


def owner_similarity(entries: Entries, context: Context) -> Float32[np.ndarray, " entries"]:
    """Cosine of each anchor and the most similar owner of the candidate; -inf for a candidate without an owner.

    i2t: max over the images j of caption c of <i, j>        t2i: max over the captions d of image i of <c, d>
    """
    return context.nearest_own("images" if entries.direction == "i2t" else "captions", entries)


def is_among_most_alike(
    similarity: Float32[np.ndarray, " entries"], entries: Entries, pool: Bool[np.ndarray, " entries"], share: float
) -> Bool[np.ndarray, " entries"]:
    """Mark the floor(share * n) of each list's n in the pool with the most similar owners; ties go to the harder."""
    found = np.zeros(len(pool), dtype=np.bool_)
    rows = np.flatnonzero(pool)
    order = rows[np.lexsort((entries.places[rows], -similarity[rows], entries.anchors[rows]))]
    anchors = entries.anchors[order]
    first, last = (np.searchsorted(anchors, anchors, side=side) for side in ("left", "right"))
    rank = np.arange(len(order)) - first
    most = np.floor(share * (last - first) + 1e-9)  # 0.7 * 10 is a little less than 7
    found[order[(rank < most) & np.isfinite(similarity[order])]] = True
    return found
