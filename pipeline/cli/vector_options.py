"""Options for vectors, true pairs and ids, as `aoq mine` takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from jaxtyping import Int32, Integer

from aoq.pipeline.cli.options import PATH, POSITIVE, threads, together, with_default
from aoq.pipeline.cli.output import echo, is_typed
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.reading import open_array
from aoq.pipeline.search.positives import pairs_by_number, unique_pairs
from aoq.pipeline.search.problem import Problem, longest_lists
from aoq.pipeline.tables.pairs import TWO_SIDES, Known, read_id_file, read_pair_file, require_one_each, rows_by_id
from aoq.pipeline.vectors import Vectors

MOST_PAIRS = 1 << 28
"""True pairs that --labels may make: 2 GB."""
ID_OPTIONS = {
    "image_ids": click.option(
        "--image-ids",
        help="The images' ids. A text file, one id per line, or FILE::COLUMN of Parquet, Arrow or a data set.",
    ),
    "caption_ids": click.option("--caption-ids", help="The captions' ids, likewise."),
}
normalise = click.option("--normalise", is_flag=True, help="Divide every vector by its norm, as a cosine does.")
pairing_options = together(
    click.option(
        "--pairs",
        type=PATH,
        help="The true pairs: a .npy file with the image of each caption (-1 for none) or with rows image, caption; or "
        "Parquet, CSV, TSV, JSONL or TREC's judgements, by rows or ids.",
    ),
    click.option(
        "--min-grade",
        type=float,
        help="Graded pairs of at least this grade are positives, the others are candidates; default: 1.",
    ),
    click.option("--per-image", type=POSITIVE, help="Consecutive captions that belong to each image."),
    click.option("--unpaired", is_flag=True, help="No caption belongs to any image."),
)
mining_options = together(
    pairing_options,
    click.option(
        "--labels",
        type=PATH,
        multiple=True,
        help="Labels instead of pairs: rows with equal labels match. A .npy file, or text with a line per row, for "
        "IMAGES, and --labels again for CAPTIONS.",
    ),
    click.option(
        "--identity",
        type=PATH,
        help="Labels of the images, likewise: images with equal labels are one photograph and share their pairs.",
    ),
    *ID_OPTIONS.values(),
    with_default("--h-captions", default=300, type=POSITIVE, help="Negatives per image; in one set, per item."),
    with_default("--h-images", default=60, type=POSITIVE, help="Negatives per caption."),
    with_default(
        "--metric",
        default="cosine",
        type=click.Choice(["cosine", "dot"]),
        help="cosine divides vectors by their norms; dot takes them as they are.",
    ),
    normalise,
    with_default("--search", default="auto", help="auto: the fastest exact search; `aoq list searches` shows all."),
    with_default(
        "--recall-floor",
        default=0.95,
        type=click.FloatRange(min=0, max=1, min_open=True),
        help="Fraction of the true lists that an approximate search must find.",
    ),
    with_default(
        "--memory-mb", default=1500, type=click.IntRange(min=100), help="Approximate memory beyond the vectors."
    ),
    threads,
)
"""Options of `aoq mine` and `aoq estimate`: pairs, lengths of lists, metric, search, memory, threads."""


def require_pairing(options: Mapping[str, Any], *, one_set: bool) -> None:
    """Refuse options for the other number of sets, and require exactly one way of pairing."""
    if one_set and (options["per_image"] is not None or options["caption_ids"] is not None):
        raise click.UsageError("IMAGES alone are one set; --per-image and --caption-ids are for IMAGES and CAPTIONS")
    if one_set and is_typed("h_images"):
        raise click.UsageError("one set has one list per item; set its length with --h-captions")
    if len(options["labels"]) not in (0, 2 - one_set):
        raise click.UsageError("give --labels for each side: once for one set, twice for IMAGES and CAPTIONS")
    if one_set and options["identity"]:
        raise click.UsageError("--identity is for IMAGES and CAPTIONS; in one set, give --labels")
    require_true_pairs(options, **{"--labels FILE": options["labels"] or None})


def require_true_pairs(options: Mapping[str, Any], **others: object) -> None:
    """Require exactly one option that gives the true pairs; `others` are a command's own, as typed."""
    pairs, unpaired = options["pairs"], options["unpaired"] or None
    ways = {"--pairs FILE": pairs, "--per-image K": options["per_image"], **others, "--unpaired": unpaired}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) != 1:
        *first, last = given or ways
        wanted = (
            f"give one of {', '.join(first)} and {last}"
            if given
            else f"give the true pairs: {', '.join(first)} or {last}"
        )
        raise click.UsageError(wanted)
    if pairs is None and options["min_grade"] is not None:
        raise click.UsageError("--min-grade needs --pairs FILE with grades; give it, or leave --min-grade out")


def read_ids_of_sides(options: Mapping[str, Any]) -> dict[str, list[str]]:
    """Read the ids of the sides that have them; ids must be unique."""
    files = {side: options[f"{side[:-1]}_ids"] for side in TWO_SIDES}
    ids = {side: read_id_file(file) for side, file in files.items() if file is not None}
    for side, names in ids.items():
        rows_by_id(names, side[:-1])
    return ids


def has_unit_norms(options: Mapping[str, Any]) -> bool:
    return options["metric"] == "cosine" or options["normalise"]


def pair_vectors(sides: Mapping[str, Vectors], options: Mapping[str, Any], ids: Mapping[str, Sequence[str]]) -> Problem:
    """Pair images with captions; images alone are one set. --pairs may name rows by `ids`."""
    one_set, images = len(sides) == 1, sides["images"]
    captions = sides.get("captions", images)
    counts = {"images": len(images.rows), "captions": len(captions.rows)}
    known = [Known(side[:-1], count, ids.get(side)) for side, count in counts.items()]
    for side in known:
        require_one_each(side.ids, f"{side.noun} ids", side.count or 0)
    pairs: Integer[np.ndarray, "*shape"]
    if options["labels"]:
        pairs = _pairs_of_one_label(options["labels"], counts)
    elif options["pairs"] is None:
        pairs = pair_in_order(counts["images"], counts["captions"], options["per_image"])
    else:
        pairs = read_pair_file(options["pairs"], known[0], known[0] if one_set else known[1], options["min_grade"])
    if options["identity"] is not None:
        identity = _read_labels(options["identity"], "images", counts["images"])
        images_of, captions_of = unique_pairs(pairs, *counts.values()).T
        spread = pairs_by_number(identity, identity[images_of])
        pairs = np.stack([spread[:, 0], captions_of[spread[:, 1]]], axis=1)
    longest = longest_lists(pairs, *counts.values(), one_set=one_set)
    h_captions = _list_length("h_captions", options, longest["i2t"])
    h_images = 0 if one_set else _list_length("h_images", options, longest["t2i"])
    memory, norms = options["memory_mb"] * 1_000_000, (images.norms, captions.norms)
    return Problem(images.rows, captions.rows, pairs, h_captions, h_images, memory, one_set, known_norms=norms)


def _pairs_of_one_label(files: Sequence[Path], counts: Mapping[str, int]) -> Int32[np.ndarray, "pairs 2"]:
    labels = [_read_labels(file, side, counts[side]) for file, side in zip(files, TWO_SIDES, strict=False)]
    if np.result_type(*labels).kind == "f":  # int64 and uint64, which floats would round
        labels = [one.astype(str) for one in labels]
    numbers = np.unique(np.concatenate(labels), return_inverse=True)[1]
    images, captions = numbers[: counts["images"]], numbers[-counts["captions"] :]
    sizes = (np.bincount(side, minlength=numbers.max() + 1) for side in (images, captions))
    if (most := int(np.prod([*sizes], axis=0).sum())) > MOST_PAIRS:
        raise ValueError(f"--labels make {most:,} pairs, but at most {MOST_PAIRS:,} fit; use finer labels.")
    return pairs_by_number(images, captions)


def _read_labels(file: Path, side: str, count: int) -> np.ndarray:
    labels = open_array(file) if file.suffix == ".npy" else np.array(read_lines(file))
    if labels.ndim != 1 or labels.dtype.kind not in "iuUb":
        raise ValueError(f"{file} holds {labels.dtype} of shape {labels.shape}; it needs an integer or text per row.")
    if len(labels) != count:
        raise ValueError(f"{file} has {len(labels)} labels, but there are {count} {side}; give one each.")
    return labels


def _list_length(name: str, options: Mapping[str, Any], longest: int) -> int:
    """Return the length of lists; a default is lowered to the available negatives."""
    h, option = options[name], f"--{name.replace('_', '-')}"
    if h <= longest or not longest or is_typed(name):  # `Problem` refuses lengths that are too large
        return int(h)
    echo(f"{option} is {longest} instead of {h}: the data has no more negatives", err=True)
    return longest


def pair_in_order(images: int, captions: int, per_image: int | None) -> Int32[np.ndarray, " captions"]:
    """Pair each image with its consecutive captions; without `per_image` no caption has an image (-1)."""
    if per_image is None:
        return np.full(captions, -1, dtype=np.int32)
    if images * per_image != captions:
        remedy = "correct it, or give --pairs FILE if images have different numbers of captions."
        if captions * per_image == images:
            remedy = "are IMAGES and CAPTIONS swapped?"
        raise ValueError(
            f"--per-image {per_image} makes {images * per_image} captions of {images} images, but there are {captions};"
            f" {remedy}"
        )
    return np.repeat(np.arange(images, dtype=np.int32), per_image)
