"""Search backends.

A `Search` finds near-best candidates of some anchors; a backend plans a whole job as steps of units. What they find is
scored again exactly, so they need only be near: `pipeline.mining.proposals`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int64

Search = Callable[
    [Float[np.ndarray, "anchors D"], Float[np.ndarray, "candidates D"], int],
    tuple[Float[np.ndarray, "anchors k"], Int64[np.ndarray, "anchors k"]],
]
"""(anchors, candidates, k) -> the k highest dot products of each anchor, falling, and whose they are."""
