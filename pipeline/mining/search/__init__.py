"""Search backends: one function type for all; what they propose is rescored, so they need only be near."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int64

from pipeline.mining.search import faiss_flat

Search = Callable[
    [Float[np.ndarray, "anchors D"], Float[np.ndarray, "candidates D"], int],
    tuple[Float[np.ndarray, "anchors k"], Int64[np.ndarray, "anchors k"]],
]
"""(anchors, candidates, k) -> the k highest dot products of each anchor, falling, and whose they are."""

SEARCHES: dict[str, Search] = {"faiss-flat": faiss_flat.search}
