"""What commands that make a file or folder of data share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float32


@contextmanager
def made_whole(output: Path) -> Iterator[Path]:
    """A path in a scratch folder, where to make what becomes `output` once it is whole."""
    if output.exists():
        raise ValueError(f"{output} is there already; remove it or choose another name.")
    folder = output.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder to write to.")
    with TemporaryDirectory(prefix=f".{output.name}.", dir=folder) as scratch:
        yield Path(scratch) / output.name
        os.replace(Path(scratch) / output.name, output)


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
