"""The vectors that commands are given, as FILE or FILE::NAME."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float32


def open_sides(
    images: str | None, captions: str | None, scratch: Path, *, normalise: bool
) -> dict[str, Float32[np.ndarray, "_ D"]]:
    """The vectors of `images` and of `captions` that are given, all finite and of one dimension."""
    from aoq.pipeline.search.vectors import check_vectors, open_vectors

    opened = {}
    for side, given in (("images", images), ("captions", captions)):
        if given is not None:
            opened[side] = open_vectors(given, scratch / f"{side}.npy", normalise=normalise)
            check_vectors(opened[side], given, unit=False)
    sizes = [vectors.shape[1] for vectors in opened.values()]
    if len({*sizes}) > 1:
        raise ValueError(f"images have {sizes[0]} dimensions and captions {sizes[1]}; both must come from one model.")
    return opened
