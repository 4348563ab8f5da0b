"""Write the other files of a dataset folder once its arrays are there: texts, pairs, origins, `prepared.json`."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int32, Shaped

from aoq.pipeline.prepare.extraction import Extraction
from aoq.pipeline.prepare.extractor import Extractor
from aoq.pipeline.prepare.photographs import write_photographs
from aoq.pipeline.prepare.request import Request
from aoq.pipeline.prepare.sources.records import Listing
from aoq.pipeline.scratch import write_atomically
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.terminal import visible

logger = logging.getLogger(__name__)

LINES = 4096
CHANGES = {
    "animated": "animated: the first frame is used",
    "rotated": "turned upright as EXIF says",
    "CMYK": "CMYK: converted to RGB",
    "16-bit": "16-bit: the upper eight bits are used",
    "transparent": "transparent: laid on white",
}


def write_split(folder: Path, part: Listing, extraction: Extraction, *, pack: bool) -> dict[str, int]:
    """Write a split's other files, and the headers of its arrays last; count its images, captions and copies."""
    split, records = extraction.split, extraction.records
    listing = part.take(np.asarray(records["place"]))
    image_of = np.repeat(np.arange(len(listing), dtype=np.int32), np.diff(listing.captions.offsets.to_numpy()))
    identity = identities(records["sha256"])
    _write_lines(folder / f"{split}_ids.txt", pa.array(map(visible, listing.ids.to_pylist()), pa.string()))
    _write_lines(folder / f"{split}_caps.txt", listing.captions.flatten())
    np.save(folder / f"{split}_pairs.npy", image_of)
    np.save(folder / f"{split}_identity.npy", identity)
    write_photographs(folder / f"{split}_images.parquet", listing.ids, listing.images, records, pack=pack)
    extraction.finish()
    for change, images in extraction.progress["changed"].items():
        logger.info("%s: %d images are %s", split, images, CHANGES[change])
    if copies := int((identity != np.arange(len(identity))).sum()):
        message = "%s: %d images repeat earlier ones byte for byte; %s_identity.npy says which are the same"
        logger.warning(message, split, copies, split)
    return {"images": len(listing), "captions": len(image_of), "copies": copies}


def identities(hashes: Shaped[np.ndarray, " images"]) -> Int32[np.ndarray, " images"]:
    """Return the row of the first image with each image's content.

    >>> identities(np.array([b"a", b"b", b"a"], "V1")).tolist()
    [0, 1, 0]
    """
    if not len(hashes):
        return np.empty(0, np.int32)
    _, first, of_image = np.unique(hashes.view(f"S{hashes.dtype.itemsize}"), return_index=True, return_inverse=True)
    return first[of_image.reshape(-1)].astype(np.int32)


def _write_lines(path: Path, texts: pa.Array) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for start, stop in blocks(len(texts), LINES):
            file.writelines(f"{text}\n" for text in texts.slice(start, stop - start).to_pylist())


def warn_of_leaks(extractions: Mapping[str, Extraction]) -> None:
    """Warn of images that are also in train."""
    hashes = {name: set(map(bytes, each.records["sha256"])) for name, each in extractions.items()}
    train = hashes.pop("train", set())
    for name, others in hashes.items():
        if shared := len(others & train):
            logger.warning("%d images of %s are in train too, byte for byte: a leak", shared, name)


def write_about(
    path: Path,
    request: Request,
    kind: str,
    extractor: Extractor,
    counts: Mapping[str, Mapping[str, int]],
    extractions: Mapping[str, Extraction],
) -> None:
    """Write `prepared.json`: the source, the extractor and the counts."""
    about = {
        "source": request.source,
        "kind": kind,
        "extractor": {
            "name": extractor.name,
            "tokens": extractor.tokens,
            "grid": extractor.grid,
            "dims": extractor.dims,
            "weights_sha256": extractor.fingerprint,
            "preprocessing": vars(extractor.preprocessing),
        },
        "splits": counts,
        "drawn": {"sizes": dict(request.sizes), "seed": request.seed} if request.sizes else None,
        "skipped": sum(len(each.progress["broken"]) for each in extractions.values()),
        "changed": dict(sum((Counter(each.progress["changed"]) for each in extractions.values()), Counter())),
    }
    write_atomically(path, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
