"""Lists of another program, as they came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Integer


@dataclass(frozen=True)
class RawLists:
    """One direction; -1 stands where a list is shorter than others."""

    source: str
    ids: Integer[np.ndarray, "anchors h"]
    scores: Float32[np.ndarray, "anchors h"] | None
