"""A source as a list of images with captions, and its splits. Keys are made of it, so this imports nothing heavy."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.console import Reporter
from aoq.pipeline.data.folder import sample
from aoq.pipeline.extras import is_hub_name, load_splits
from aoq.pipeline.prepare.sources import tables
from aoq.pipeline.prepare.sources.images import EncodedImages, ImageFiles
from aoq.pipeline.prepare.sources.records import OUR_SPLITS, Listing, Records, read_records
from aoq.pipeline.prepare.sources.shards import list_shards

logger = logging.getLogger(__name__)

SOURCES = {
    "a .csv, .tsv, .txt, .jsonl or .parquet table": tables.list_table,
    "Karpathy's or COCO's .json": tables.list_json,
    "webdataset's .tar shards": list_shards,
    "a saved Hugging Face data set": tables.list_saved,
    "a folder with train_ids.txt and train_caps.txt": tables.list_id_files,  # ours have Parquet files too
    "a folder of Parquet files": tables.list_parquet_folder,
    "a folder of images with a .txt beside each": tables.list_sidecars,
}
"""Kinds of sources in the order in which they are tried; each gives None for a source of another kind."""
SPLIT_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
HASHED_AT_ONCE = 1024


def below(source: Source, data_root: Path) -> Source:
    """Let the paths of an experiment's [dataset.source] start at the data root."""
    path = source.path if is_hub_name(source.path) else str(data_root / source.path)
    images = None if source.images is None else str(data_root / source.images)
    return source.model_copy(update={"path": path, "images": images})


def list_source(source: Source) -> Listing:
    """Open a source and list its images with their captions."""
    path = Path(source.path).expanduser()
    if source.images is not None and not Path(source.images).is_dir():
        raise FileNotFoundError(f"--images: there is no folder {source.images}.")
    if is_hub_name(source.path):
        records: Records | None = tables.list_dataset(load_splits(source.path), source)
    elif not path.exists():
        raise FileNotFoundError(f"{path} does not exist; a data set of the Hugging Face hub is named hf:OWNER/NAME.")
    else:
        records = next(filter(None, (list_kind(path, source) for list_kind in SOURCES.values())), None)
    if records is None:
        raise ValueError(f"{path} holds no images with captions in a known layout; known are {'; '.join(SOURCES)}.")
    try:
        return read_records(source, *records)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source.path}: {error}") from None


def source_fingerprint(source: Source) -> str:
    """Fingerprint a source's content, regardless of its location: its texts, and the size of every image.

    Files that hold many images are identified by their size and 256 blocks of each.
    """
    listing = list_source(source)
    total = sha256(listing.texts_sha256.encode())
    if not listing.images.files:
        total.update(listing.images.identity().encode())
    for path in listing.images.files:
        with suppress(OSError, ValueError):  # a missing file has no size
            total.update(f"{os.stat(path).st_size}\0".encode())
            if not isinstance(listing.images, ImageFiles):
                for block in sample(Path(path)):
                    total.update(block)
    return total.hexdigest()


def read_sizes(text: str) -> dict[str, int]:
    """Parse the sizes of splits that are to be drawn.

    >>> read_sizes("dev=1000, test=500")
    {'dev': 1000, 'test': 500}
    """
    sizes: dict[str, int] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, count = map(str.strip, part.partition("="))
        is_new = SPLIT_WORD.fullmatch(name) and name not in ("train", *sizes)
        if not is_new or not count.isdecimal() or not int(count):
            raise ValueError(f"--split-sizes {part!r}: write dev=1000,test=1000; train gets all other images.")
        sizes[name] = int(count)
    return sizes


def named_splits(listing: Listing) -> Listing:
    """Rename the source's splits; Karpathy's `restval` belongs to train."""
    names = listing.splits.to_pylist() if listing.splits is not None else []
    if missing := [place for place, name in enumerate(names) if not name]:
        image = listing.ids[missing[0]].as_py()
        raise ValueError(f"image {image} has no split; give every image one, or draw them: --split-sizes.")
    ours = {name: "train" if name == "restval" else OUR_SPLITS.get(name.lower(), name) for name in dict.fromkeys(names)}
    if wrong := [name for name in ours if not SPLIT_WORD.fullmatch(name)]:
        raise ValueError(f"a split is called {wrong[0]!r}; names have letters, digits, dots and hyphens.")
    if changed := [f"{old} to {new}" for old, new in ours.items() if old != new]:
        logger.info("splits renamed: %s", ", ".join(changed))
    return replace(listing, splits=pa.array([ours[name] for name in names], pa.string()))


def draw_splits(
    listing: Listing, sizes: Mapping[str, int], seed: int, hashes: Shaped[np.ndarray, " images"]
) -> Listing:
    """Draw splits of these sizes; all other images are train. Images with the same content share a split.

    Without sizes, dev and test are a tenth each, at least two and at most a thousand images.
    """
    if not sizes:
        sizes = dict.fromkeys(("dev", "test"), min(1000, max(2, len(listing) // 10)))
        if len(listing) < 10:
            remedy = "say how many: --split-sizes dev=2" if len(listing) > 3 else "add some: each split needs two"
            raise ValueError(f"{len(listing)} images are too few to draw dev and test from; {remedy}.")
    if sum(sizes.values()) >= len(listing):
        raise ValueError(
            f"--split-sizes asks for {sum(sizes.values()):,} of {len(listing):,} images, and leaves none for train."
        )
    _, group_of, counts = np.unique(hashes, return_inverse=True, return_counts=True)
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


def hash_images(images: EncodedImages, count: int, report: Reporter) -> list[bytes]:
    """Hash each image's bytes with sha256; an unreadable image gets a hash of its own."""
    hashes: list[bytes] = []
    with ThreadPoolExecutor(8) as pool:
        for start in range(0, count, HASHED_AT_ONCE):
            rows = range(start, min(start + HASHED_AT_ONCE, count))
            for row, known in zip(rows, pool.map(images.sha256, rows), strict=True):
                hashes.append(known or sha256(f"unreadable {row}".encode()).digest())
            report(len(hashes), count, "images hashed")
    return hashes
