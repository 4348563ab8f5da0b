"""The arguments of `aoq mine`, which `aoq estimate` takes too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Int32

    from aoq.pipeline.search.problem import Problem

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


class _Search(click.Option):
    """Its help names the backends there are, which are imported only when help is asked for."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from aoq.pipeline.search.backends import describe_backends

        self.help = describe_backends()
        return super().get_help_record(ctx)


PAIRING = (
    click.option(
        "--pairs", type=click.Path(path_type=Path), help="A .npy file: the image of each caption, -1 for none."
    ),
    click.option("--per-image", type=click.IntRange(min=1), help="Consecutive captions that belong to each image."),
    click.option("--unpaired", is_flag=True, help="No caption belongs to any image."),
)
OPTIONS = (
    *PAIRING,
    click.option(
        "--h-captions", default=300, show_default=True, type=click.IntRange(min=1), help="Negatives an image."
    ),
    click.option("--h-images", default=60, show_default=True, type=click.IntRange(min=1), help="Negatives a caption."),
    click.option("--metric", default="cosine", show_default=True, type=click.Choice(["cosine", "dot"])),
    click.option("--normalise", is_flag=True, help="Divide every vector by its norm first."),
    click.option("--search", cls=_Search, default="auto", show_default=True),
    click.option(
        "--recall-floor",
        default=0.95,
        show_default=True,
        type=click.FloatRange(min=0, max=1, min_open=True),
        help="Fraction of the true lists that an approximate search must find.",
    ),
    click.option(
        "--memory-mb",
        default=1500,
        show_default=True,
        type=click.IntRange(min=100),
        help="Memory to use beyond the vectors, about.",
    ),
    click.option("--threads", default=0, type=click.IntRange(min=0), help="0: as many as this process may use."),
)


def mining_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take the pairs, how many negatives, the metric, the search, memory and threads."""
    return _with_options(OPTIONS, command)


def pairing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Take who belongs to whom, as `read_pairing` reads it."""
    return _with_options(PAIRING, command)


def _with_options(options: Sequence[Option], command: Callable[..., Any]) -> Callable[..., Any]:
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def require_pairing(options: Mapping[str, Any]) -> None:
    if sum((options["pairs"] is not None, options["per_image"] is not None, options["unpaired"])) != 1:
        raise click.UsageError("say who belongs to whom: --pairs FILE, --per-image K or --unpaired")


def open_problem(copies: Mapping[str, str], folder: Path, options: Mapping[str, Any]) -> Problem:
    """Open the vectors of images and captions, and pair them; what is no float32 is converted into `folder`."""
    from aoq.pipeline.search.problem import Problem
    from aoq.pipeline.search.vectors import open_vectors

    images, captions = (
        open_vectors(copies[side], folder / f"{side}.npy", normalise=options["normalise"])
        for side in ("images", "captions")
    )
    image_of = read_pairing(len(images), len(captions), options["pairs"], options["per_image"])
    memory = options["memory_mb"] * 1_000_000
    return Problem(images, captions, image_of, options["h_captions"], options["h_images"], memory)


def read_pairing(
    images: int, captions: int, pairs: Path | None, per_image: int | None
) -> Int32[np.ndarray, " captions"]:
    import numpy as np

    if pairs is not None:
        return read_pairs(pairs)
    if per_image is None:
        return np.full(captions, -1, dtype=np.int32)
    if images * per_image != captions:
        raise ValueError(
            f"{images} images of {per_image} captions make {images * per_image}, and there are {captions}."
        )
    return np.repeat(np.arange(images, dtype=np.int32), per_image)


def read_pairs(path: Path) -> Int32[np.ndarray, " captions"]:
    import numpy as np

    image_of = np.load(path)
    if image_of.ndim != 1 or not np.issubdtype(image_of.dtype, np.integer):
        raise ValueError(f"{path} holds {image_of.dtype} of shape {image_of.shape}; an integer a caption is needed.")
    return image_of.astype(np.int32)
