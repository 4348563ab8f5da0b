"""Finish a dataset folder once all images are extracted: its other files, and the log's summary."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from aoq.pipeline.prepare.extraction import Extraction
from aoq.pipeline.prepare.extractors.extractor import Extractor
from aoq.pipeline.prepare.request import Request
from aoq.pipeline.prepare.sources.listing import Listing
from aoq.pipeline.prepare.writing import Counts, write_images, write_split
from aoq.pipeline.scratch import write_atomically

logger = logging.getLogger(__name__)

ABOUT = "prepared.json"


def finish(request: Request, folder: Path, part: Listing, extraction: Extraction) -> Counts:
    """Write a split's other files, and its header last."""
    records = extraction.records
    kept = part.take(np.asarray(records["place"]))
    counts = write_split(folder, extraction.split, kept, records)
    write_images(folder / f"{extraction.split}_images.parquet", kept, records, pack=request.pack)
    extraction.finish()
    for change, images in extraction.progress["changed"].items():
        logger.info("%s: %d images are %s", extraction.split, images, CHANGES[change])
    if counts.copies:
        logger.warning(
            "%s: %d images stand there before, byte for byte; %s_identity.npy says which are the same",
            *(extraction.split, counts.copies, extraction.split),
        )
    return counts


CHANGES = {
    "animated": "animated: the first frame is used",
    "rotated": "turned upright as EXIF says",
    "CMYK": "CMYK: converted to RGB",
    "16-bit": "16-bit: the upper eight bits are used",
    "transparent": "transparent: laid on white",
}


def report_leaks(extractions: Mapping[str, Extraction]) -> None:
    """Warn of images that are in train too."""
    hashes = {name: set(map(bytes, found.records["sha256"])) for name, found in extractions.items()}
    train = hashes.pop("train", set())
    for name, others in hashes.items():
        if both := len(others & train):
            logger.warning("%d images of %s are in train too, byte for byte: a leak", both, name)


def write_about(
    request: Request,
    folder: Path,
    kind: str,
    extractor: Extractor,
    counts: Mapping[str, Counts],
    skipped: int,
    extractions: Mapping[str, Extraction],
) -> None:
    seen = extractor.preprocessing
    about: dict[str, Any] = {
        "source": request.source,
        "kind": kind,
        "extractor": {
            "name": extractor.name,
            "tokens": extractor.tokens,
            "grid": extractor.grid,
            "dims": extractor.dims,
            "weights_sha256": extractor.fingerprint,
            "preprocessing": vars(seen),
        },
        "splits": {name: split._asdict() for name, split in counts.items()},
        "drawn": {"sizes": dict(request.sizes), "seed": request.seed} if request.sizes else None,
        "skipped": skipped,
        "changed": dict(sum((Counter(each.progress["changed"]) for each in extractions.values()), Counter())),
    }
    write_atomically(folder / ABOUT, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
