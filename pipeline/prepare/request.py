"""Request of a preparation: its source, opened and fingerprinted. Imports nothing heavy: keys are made of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.data.folder import sample
from aoq.pipeline.extras import is_of_hub, load_splits
from aoq.pipeline.prepare.sources.images import ImageFiles
from aoq.pipeline.prepare.sources.json_files import id_file_splits, is_json, list_id_files, list_json
from aoq.pipeline.prepare.sources.records import Fields, Listing, read_records
from aoq.pipeline.prepare.sources.shards import find_shards, list_shards
from aoq.pipeline.prepare.sources.tables import (
    list_dataset,
    list_parquet_folder,
    list_saved,
    list_table,
    parquet_files,
    saved_file,
    table_in,
)

logger = logging.getLogger(__name__)

SHOWN_BROKEN = 5
"""Records or images that an error names; the log names all."""
SOURCES = {
    "a .csv, .tsv, .jsonl or .parquet table": (table_in, list_table),
    "Karpathy's or COCO's .json": (is_json, list_json),
    "webdataset's .tar shards": (find_shards, list_shards),
    "a saved Hugging Face data set": (saved_file, list_saved),
    "a folder of Parquet files": (parquet_files, list_parquet_folder),
    "a folder with train_ids.txt and train_caps.txt": (id_file_splits, list_id_files),
}
"""Kinds of sources in the order in which they are tried: what finds names of this kind, and what lists them."""


@dataclass(frozen=True)
class Request:
    """The source and the options of a preparation."""

    source: str
    images: Path | None = None
    """Folder where image paths start; by default the source's own."""
    fields: Fields = field(default_factory=Fields)
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of splits to draw, instead of the source's splits."""
    seed: int = 0
    restval: Literal["train", "drop"] = "train"
    extractor: str = "efficientnet-lite0"
    tokens: Literal["patches", "pooled"] = "patches"
    skip_broken: bool = False
    pack: bool = False
    thumbnails: bool = True

    @classmethod
    def of_section(cls, section: Source, data_root: Path) -> Request:
        """Make the request of an experiment's [dataset.source]; its paths start at the data root."""
        return cls(
            section.path if is_of_hub(section.path) else str(data_root / section.path),
            None if section.images is None else data_root / section.images,
            Fields(section.image_column, section.caption_columns, section.id_column, section.split_column),
            section.split_sizes,
            section.seed,
            section.restval,
            section.extractor,
            section.tokens,
            section.skip_broken,
            section.pack,
        )


def list_source(
    source: str, images: Path | None = None, fields: Fields | None = None, skip_broken: bool = False
) -> Listing:
    """Open a source and list its images with their captions; `images` is the folder where image paths start."""
    path, fields = Path(source).expanduser(), fields or Fields()
    if images is not None and not images.is_dir():
        raise FileNotFoundError(f"--images: there is no folder {images}.")
    if is_of_hub(source):
        records = list_dataset(load_splits(source), images, fields)
    elif not path.exists():
        raise FileNotFoundError(f"{source} does not exist; a data set of the Hugging Face hub is named hf:OWNER/NAME.")
    else:
        open_kind = next((open_kind for is_kind, open_kind in SOURCES.values() if is_kind(path)), None)
        if open_kind is None:
            raise ValueError(
                f"{source} holds no images with captions in a known layout; known are {'; '.join(SOURCES)}."
            )
        records = open_kind(path, images, fields)
    if records.broken and not skip_broken:
        shown = "; ".join(records.broken[:SHOWN_BROKEN])
        raise ValueError(
            f"{len(records.broken)} records cannot be read: {shown}; repair them, or leave them out (--skip-broken)."
        )
    for sentence in records.broken:
        logger.warning("%s; the record is left out", sentence)
    try:
        return read_records(records)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source}: {error}") from None


def source_fingerprint(request: Request) -> str:
    """Fingerprint a source's content, regardless of its location: its texts, and the size of every image.

    Files that hold many images are identified by their size and 256 blocks of each.
    """
    listing = list_source(request.source, request.images, request.fields, request.skip_broken)
    total = sha256(listing.texts_sha256.encode())
    if not listing.images.files:
        total.update(listing.images.identity().encode())
    for path in listing.images.files:
        with suppress(OSError, ValueError):  # a missing file counts as missing
            total.update(f"{os.stat(path).st_size}\0".encode())
            if not isinstance(listing.images, ImageFiles):
                for block in sample(Path(path)):
                    total.update(block)
    return total.hexdigest()
