"""The vectors that commands are given, as FILE or FILE::NAME, and the pairs of what they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from jaxtyping import Float32, Int32

from aoq.pipeline.reading import open_array
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.vectors import check_vectors, open_vectors


def require_pairing(options: Mapping[str, Any]) -> None:
    if sum((options["pairs"] is not None, options["per_image"] is not None, options["unpaired"])) != 1:
        raise click.UsageError("say who belongs to whom: --pairs FILE, --per-image K or --unpaired")


def open_problem(copies: Mapping[str, str], folder: Path, options: Mapping[str, Any]) -> Problem:
    """Open the vectors of images and captions, and pair them; what is no float32 is converted into `folder`."""
    images, captions = (
        open_vectors(copies[side], folder / f"{side}.npy", normalise=options["normalise"])
        for side in ("images", "captions")
    )
    pairs = options["pairs"]
    image_of = pair_in_order(len(images), len(captions), options["per_image"]) if pairs is None else read_pairs(pairs)
    memory = options["memory_mb"] * 1_000_000
    return Problem(images, captions, image_of, options["h_captions"], options["h_images"], memory)


def read_pairs(path: Path) -> Int32[np.ndarray, " captions"]:
    """The image of each caption, from a .npy file."""
    image_of = open_array(path)
    if image_of.ndim != 1 or not np.issubdtype(image_of.dtype, np.integer):
        raise ValueError(f"{path} holds {image_of.dtype} of shape {image_of.shape}; an integer a caption is needed.")
    if len(outside := np.flatnonzero((image_of < -1) | (image_of > np.iinfo(np.int32).max))):
        raise ValueError(
            f"{path}: caption {outside[0]} is paired with image {image_of[outside[0]]}; rows of images start at 0, and "
            "-1 stands for none."
        )
    return image_of.astype(np.int32)


def pair_in_order(images: int, captions: int, per_image: int | None) -> Int32[np.ndarray, " captions"]:
    """The image of each caption where consecutive ones belong to one image; -1 where none belongs to any."""
    if per_image is None:
        return np.full(captions, -1, dtype=np.int32)
    if images * per_image != captions:
        raise ValueError(
            f"{images} images of {per_image} captions make {images * per_image}, and there are {captions}."
        )
    return np.repeat(np.arange(images, dtype=np.int32), per_image)


def open_sides(
    images: str | None, captions: str | None, scratch: Path, *, normalise: bool
) -> dict[str, Float32[np.ndarray, "_ D"]]:
    """The vectors of `images` and of `captions` that are given, all finite and of one dimension."""
    opened = {}
    for side, given in (("images", images), ("captions", captions)):
        if given is not None:
            opened[side] = open_vectors(given, scratch / f"{side}.npy", normalise=normalise)
            check_vectors(opened[side], given, unit=False)
    sizes = [vectors.shape[1] for vectors in opened.values()]
    if len({*sizes}) > 1:
        raise ValueError(f"images have {sizes[0]} dimensions and captions {sizes[1]}; both must come from one model.")
    return opened
