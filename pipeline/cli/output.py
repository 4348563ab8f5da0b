"""What commands that read vectors share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float32


def open_both_vectors(
    given: tuple[str, str], scratch: Path, *, normalise: bool
) -> dict[str, Float32[np.ndarray, "_ D"]]:
    """The vectors of `images` and of `captions`, all finite."""
    from aoq.pipeline.search.vectors import check_vectors, open_vectors

    opened = {}
    for side, one in zip(("images", "captions"), given, strict=True):
        opened[side] = open_vectors(one, scratch / f"{side}.npy", normalise=normalise)
        check_vectors(opened[side], one, unit=False)
    images, captions = opened["images"].shape[1], opened["captions"].shape[1]
    if images != captions:
        raise ValueError(f"images have {images} dimensions and captions {captions}; both must come from one model.")
    return opened
