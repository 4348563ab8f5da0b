"""Request of a preparation, and the fingerprint of its source. Imports nothing heavy: keys are made of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Literal

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.data.folder import sample
from aoq.pipeline.hub import is_of_hub
from aoq.pipeline.prepare.sources.layout import Columns
from aoq.pipeline.prepare.sources.listing import Files
from aoq.pipeline.prepare.sources.recognise import open_source
from aoq.pipeline.prepare.splits import Restval


@dataclass(frozen=True)
class Request:
    """The source and the options of a preparation."""

    source: str
    images: Path | None = None
    """Folder where image paths start; by default the source's own."""
    columns: Columns = field(default_factory=Columns)
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of splits to draw, instead of the source's splits."""
    seed: int = 0
    restval: Restval = "train"
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
            Columns(section.image_column, section.caption_columns, section.id_column, section.split_column),
            section.split_sizes,
            section.seed,
            section.restval,
            section.extractor,
            section.tokens,
            section.skip_broken,
            section.pack,
        )


def source_fingerprint(request: Request) -> str:
    """Fingerprint a source's content, regardless of its location: its texts, and the size of every image.

    Files that hold many images are identified by their size and 256 blocks of each.
    """
    listing = open_source(request.source, request.images, request.columns)
    total = sha256(listing.texts_sha256.encode())
    if not listing.images.files:
        total.update(listing.images.identity().encode())
    for path in listing.images.files:
        with suppress(OSError, ValueError):  # a missing file counts as missing
            total.update(f"{os.stat(path).st_size}\0".encode())
            if not isinstance(listing.images, Files):
                for block in sample(Path(path)):
                    total.update(block)
    return total.hexdigest()
