"""Splits for training and evaluation: the source's own, or drawn with a seed."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aoq.pipeline.prepare.sources.listing import Images, Listing

logger = logging.getLogger(__name__)

Restval = Literal["train", "drop"]
OURS = {"val": "dev", "valid": "dev", "validation": "dev", "development": "dev", "training": "train", "testing": "test"}
"""Other names of our splits."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
BLOCK = 1024


def read_sizes(text: str) -> dict[str, int]:
    """Parse the sizes of splits that are to be drawn.

    >>> read_sizes("dev=1000, test=500")
    {'dev': 1000, 'test': 500}
    """
    sizes: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, count = map(str.strip, part.partition("="))
        if not NAME.fullmatch(name) or not count.isdecimal() or not int(count) or name in sizes or name == "train":
            raise ValueError(f"--split-sizes {part!r}: write dev=1000,test=1000; train gets all other images.")
        sizes[name] = int(count)
    return sizes


def default_sizes(images: int) -> dict[str, int]:
    """Return the sizes of dev and test: a tenth each, at most a thousand images."""
    size = min(1000, images // 10)
    if not size:
        raise ValueError(f"{images} images are too few to draw dev and test from; say how many: --split-sizes dev=1.")
    return {"dev": size, "test": size}


def named_splits(listing: Listing, restval: Restval) -> Listing:
    """Rename the source's splits; Karpathy's `restval` belongs to train, or is left out.

    Raises:
        ValueError: for an image without a split, or an invalid file name.
    """
    assert listing.splits is not None  # else there is nothing to rename
    if listing.splits.null_count:
        place = pc.index(listing.splits.is_null(), True).as_py()
        raise ValueError(f"image {listing.ids[place].as_py()} has no split; give every image one, or --split-sizes.")
    if restval == "drop":
        is_kept = pc.not_equal(listing.splits, "restval")
        listing = listing.take(np.flatnonzero(is_kept.to_numpy(zero_copy_only=False)))
    assert listing.splits is not None
    encoded = listing.splits.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if wrong := [name for name in names if not NAME.fullmatch(name)]:
        raise ValueError(f"a split is called {wrong[0]!r}; names have letters, digits, dots and hyphens.")
    ours = ["train" if name == "restval" else OURS.get(name.lower(), name) for name in names]
    if changed := [f"{old} to {new}" for old, new in zip(names, ours, strict=True) if old != new]:
        logger.info("splits renamed: %s", ", ".join(changed))
    return replace(listing, splits=pa.array(ours, pa.string()).take(encoded.indices))


def draw_splits(listing: Listing, sizes: Mapping[str, int], seed: int, hashes: Sequence[bytes]) -> Listing:
    """Draw splits of these sizes; all other images are train. Images with the same content share a split.

    Raises:
        ValueError: if there are too few images.
    """
    if sum(sizes.values()) >= len(listing):
        raise ValueError(
            f"--split-sizes asks for {sum(sizes.values()):,} of {len(listing):,} images, and leaves none for train."
        )
    _, group_of, counts = np.unique(np.array(hashes), return_inverse=True, return_counts=True)
    split_of = np.zeros(len(counts), dtype=np.int64)
    waiting = np.random.default_rng(seed).permutation(len(counts))
    for number, (name, size) in enumerate(sizes.items(), start=1):
        # Copies stay together, so a group that would make the split too large is skipped.
        left, taken = size, []
        for group in waiting:
            if counts[group] <= left:
                taken.append(group)
                left -= int(counts[group])
            if not left:
                break
        if left:
            raise ValueError(f"copies of one image go to one split, so {name} cannot have {size}; try {size - left}.")
        split_of[taken] = number
        waiting = waiting[~np.isin(waiting, taken)]
    names = pa.array(["train", *sizes], pa.string())
    logger.info("splits drawn with seed %d: %s; all other images are train", seed, dict(sizes))
    return replace(listing, splits=names.take(pa.array(split_of[group_of.reshape(-1)])))


def hash_images(listing: Listing, report: Callable[[int, int, str], None]) -> list[bytes]:
    """Hash each image's bytes with sha256; an unreadable image gets a hash of its own."""
    hashes: list[bytes] = []
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, len(listing), BLOCK):
            rows = listing.rows[start : start + BLOCK].tolist()
            hashes += pool.map(_hash, [listing.images] * len(rows), rows)
            report(len(hashes), len(listing), "images hashed")
    return hashes


def _hash(images: Images, row: int) -> bytes:
    try:
        return sha256(images.read(row)).digest()
    except (OSError, ValueError):
        return sha256(f"unreadable {row}".encode()).digest()
