"""The vectors that commands are given, as FILE or FILE::NAME, and the pairs of what they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource
from jaxtyping import Float32, Int32, Integer

from aoq.pipeline.cli.ids import read_ids
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.tables.pair_files import Known, read_pairs
from aoq.pipeline.tables.rows import rows_by_id
from aoq.pipeline.vectors import Vectors, open_vectors


def require_pairing(options: Mapping[str, Any], *, one_set: bool) -> None:
    per_image = options["per_image"]
    if one_set and (per_image is not None or options["caption_ids"] is not None):
        raise click.UsageError("IMAGES alone are one set; --per-image and --caption-ids are for IMAGES and CAPTIONS")
    if one_set and click.get_current_context().get_parameter_source("h_images") is ParameterSource.COMMANDLINE:
        raise click.UsageError("one set has lists of one kind; give their length as --h-captions alone")
    require_true_pairs(options["pairs"], per_image, options["unpaired"], options["min_grade"])


def require_true_pairs(
    pairs: Path | None, per_image: int | None, unpaired: bool, min_grade: float | None, **others: object
) -> None:
    """Require one of the options that say which pairs are true; `others` are a command's own, by how they are typed."""
    given = {"--pairs FILE": pairs, "--per-image K": per_image, **others, "--unpaired": unpaired or None}
    if sum(value is not None for value in given.values()) != 1:
        *first, last = given
        raise click.UsageError(f"give the true pairs: {', '.join(first)} or {last}")
    if pairs is None and min_grade is not None:
        raise click.UsageError("--min-grade is about the grades of --pairs FILE; give it, or leave --min-grade out")


def given_ids(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """The ids of the sides that have them, a row each."""
    given = {"images": options["image_ids"], "captions": options["caption_ids"]}
    found = {side: read_ids(names) for side, names in given.items() if names is not None}
    for side, ids in found.items():
        rows_by_id(ids, side.removesuffix("s"))
    return found


def divides(options: Mapping[str, Any]) -> bool:
    """Return whether vectors are divided by their norms."""
    return options["metric"] == "cosine" or options["normalise"]


def pair_vectors(sides: Mapping[str, Vectors], options: Mapping[str, Any], ids: Mapping[str, Sequence[str]]) -> Problem:
    """Pair the vectors of images and captions; without captions the images are one set.

    `ids` are those that --pairs may name rows by.
    """
    one_set, ((images, norms), *_, (captions, other_norms)) = len(sides) == 1, [*sides.values()] * 2
    known = [
        Known(noun, len(vectors), ids.get(side))
        for side, noun, vectors in (("images", "image", images), ("captions", "caption", captions))
    ]
    for side in known:
        if side.ids is not None and len(side.ids) != side.count:
            raise ValueError(f"{len(side.ids)} {side.noun} ids are given for {side.count} vectors; give one each.")
    if options["pairs"] is None:
        pairs: Integer[np.ndarray, "*shape"] = pair_in_order(len(images), len(captions), options["per_image"])
    else:
        pairs = read_pairs(options["pairs"], known[0], known[0] if one_set else known[1], options["min_grade"])
    depths = options["h_captions"], 0 if one_set else options["h_images"]
    try:
        memory = options["memory_mb"] * 1_000_000
        return Problem(images, captions, pairs, *depths, memory, one_set, known_norms=(norms, other_norms))
    except ValueError as error:  # which names depths as experiments do
        raise ValueError(re.sub(r"\bh_(captions|images)\b", r"--h-\1", str(error))) from None


def pair_in_order(images: int, captions: int, per_image: int | None) -> Int32[np.ndarray, " captions"]:
    """The image of each caption where consecutive ones belong to one image; -1 where none belongs to any."""
    if per_image is None:
        return np.full(captions, -1, dtype=np.int32)
    if images * per_image != captions:
        raise ValueError(
            f"--per-image {per_image} makes {images * per_image} captions of {images} images, and there are {captions};"
            " give the right number, or --pairs FILE if images differ in it."
        )
    return np.repeat(np.arange(images, dtype=np.int32), per_image)


def open_sides(
    images: str | None,
    captions: str | None,
    scratch: Path,
    *,
    normalise: bool | Sequence[str] = False,
) -> dict[str, Float32[np.ndarray, "_ D"]]:
    """Open the vectors of `images` and of `captions` that are given, all finite and of one dimension.

    `normalise` names sides that are divided by their norms, or says it of both.
    """
    opened = {}
    for side, given in (("images", images), ("captions", captions)):
        if given is not None:
            by_norms = normalise if isinstance(normalise, bool) else side in normalise
            opened[side] = open_vectors(given, scratch / f"{side}.npy", normalise=by_norms).rows
    sizes = [vectors.shape[1] for vectors in opened.values()]
    if len({*sizes}) > 1:
        raise ValueError(f"images have {sizes[0]} dimensions and captions {sizes[1]}; both must come from one model.")
    return opened
