"""Prepare a dataset folder from images and captions: features first, then its other files."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Int32, Shaped

from aoq.pipeline.console import Reporter, visible
from aoq.pipeline.data.folder import PREPARED
from aoq.pipeline.engine import Engine
from aoq.pipeline.extras import import_extra
from aoq.pipeline.files import digest, file_sha256, write_atomically
from aoq.pipeline.on_ray import choose_runner, load_ray
from aoq.pipeline.prepare.blocks import extract_blocks, ship_extraction
from aoq.pipeline.prepare.extraction import Extracting, Extraction, ImageReader, has_thumbnail
from aoq.pipeline.prepare.extractor import Extractor
from aoq.pipeline.prepare.extractors import open_extractor
from aoq.pipeline.prepare.photographs import LISTED_ROWS, write_photographs
from aoq.pipeline.prepare.request import SHOWN_BROKEN, Request, list_source
from aoq.pipeline.prepare.sources.records import Listing, clean_captions
from aoq.pipeline.prepare.splits import draw_splits, hash_images, named_splits
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.units import Folder

logger = logging.getLogger(__name__)


def prepare_folder(
    request: Request, folder: Path, work: Path, engine: Engine, *, batch: int = 32, report: Reporter
) -> tuple[Extractor, dict[str, dict[str, int]]]:
    """Fill `folder` with a dataset folder; return the extractor and the counts of each split.

    `work` keeps what the next run needs until the folder is published. On Ray the nodes extract blocks of images there.
    """
    import_extra("PIL.Image", "prepare", "aoq prepare")  # before anything is read
    if engine.backend == "ray":
        load_ray()
    listing = list_source(request.source, request.images, request.fields, request.skip_broken)
    logger.info("%s is %s of %d images", request.source, listing.kind, len(listing))
    listing = clean_captions(listing)
    folder.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    device = engine.torch_device()
    extractor = open_extractor(request.extractor, request.tokens)
    key = _begin(request, listing, extractor, folder, work)
    if listing.splits is not None and not request.sizes:
        listing = named_splits(listing, request.restval)
    else:
        listing = draw_splits(listing, request.sizes, request.seed, _hashes(listing, work, report))
    parts = _divide(listing)
    extractor.to(device)
    job = Extracting(extractor, device, min(batch, extractor.preprocessing.most_at_once), _workers(engine))
    thumbs = folder / "thumbs" if request.thumbnails else None
    extractions = {
        name: Extraction(folder, work, name, extractor, part.ids.to_pylist(), thumbs) for name, part in parts.items()
    }
    readers = {name: _reader(part, request, extractor) for name, part in parts.items()}

    def tell() -> None:
        report(sum(each.progress["done"] for each in extractions.values()), len(listing), "images")

    if engine.backend == "inprocess":
        for name, extraction in extractions.items():
            with extraction.appending() as append:
                for arrays, images in job.batches(readers[name], extraction.progress["done"]):
                    append(arrays, images)
                    tell()
    else:
        (work / "blocks").mkdir(exist_ok=True)
        store = Folder(work / "blocks", digest([key, job.batch]))
        store.clear_unfinished()
        ship = partial(ship_extraction, request=request, reader=_reader(listing, request, extractor))
        extract_blocks(extractions, readers, job, store, choose_runner(engine, ship), tell)
    _heed_broken(request, parts, extractions)
    counts = {name: _write_split(folder, part, extractions[name], pack=request.pack) for name, part in parts.items()}
    ids = [name for part in extractions.values() for name in part.ids]
    if outside := sum(thumbs is not None and not has_thumbnail(thumbs, name) for name in ids):
        logger.warning(
            "%d images have no thumbnail: their paths are absolute or lead up; give paths relative to --images", outside
        )
    about = {
        "source": request.source,
        "kind": listing.kind,
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
        "sha256": {path.name: file_sha256(path) for path in sorted(folder.glob("?*_*")) if path.is_file()},
    }
    write_atomically(folder / PREPARED, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    return extractor, counts


def _reader(part: Listing, request: Request, extractor: Extractor) -> ImageReader:
    return ImageReader(part.images, len(part), extractor.preprocessing, request.thumbnails)


def _begin(request: Request, listing: Listing, extractor: Extractor, folder: Path, work: Path) -> str:
    """Remove results of another request; record this one and return its key."""
    key = digest(
        {
            "images": listing.images.identity(),
            "texts": listing.texts_sha256,
            "sizes": dict(request.sizes),
            "seed": request.seed,
            "restval": request.restval,
            "extractor": [request.extractor, request.tokens, repr(extractor.preprocessing), extractor.fingerprint],
            "thumbnails": request.thumbnails,
        }
    )
    file = work / "job"
    if not file.is_file() or file.read_text(encoding="utf-8") != key:
        for path in (*folder.iterdir(), *work.iterdir()):
            if path == work or path.name.startswith("."):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        write_atomically(file, key.encode())
    elif any(work.glob("*.progress.json")):
        logger.info("continuing where the last run stopped")
    return key


def _hashes(listing: Listing, work: Path, report: Reporter) -> list[bytes]:
    if not (kept := work / "hashes.bin").is_file():
        write_atomically(kept, b"".join(hash_images(listing.images, len(listing), report)))
    content = kept.read_bytes()
    return [content[start : start + 32] for start in range(0, len(content), 32)]


def _divide(listing: Listing) -> dict[str, Listing]:
    assert listing.splits is not None  # they were named or drawn
    names = sorted(listing.splits.unique().to_pylist(), key=lambda name: (name != "train", name))
    split_of = listing.splits.to_numpy(zero_copy_only=False)
    return {name: listing.take(np.flatnonzero(split_of == name)) for name in names}


def _workers(engine: Engine) -> int:
    """Processes that read ahead (on Ray, per unit): one per core, except on a machine with one core."""
    cores = engine.threads or (len(os.sched_getaffinity(0)) if engine.backend == "inprocess" else 1)
    return cores if cores > 1 else 0


def _heed_broken(request: Request, parts: Mapping[str, Listing], extractions: Mapping[str, Extraction]) -> None:
    """Warn of the images that are left out."""
    broken = [
        f"{part.images.describe(place)} {problem}"
        for name, part in parts.items()
        for place, problem in extractions[name].progress["broken"]
    ]
    total = sum(map(len, parts.values()))
    more = f"; and {len(broken) - SHOWN_BROKEN} more" if len(broken) > SHOWN_BROKEN else ""
    shown = "; ".join(broken[:SHOWN_BROKEN]) + more
    if len(broken) == total:
        raise ValueError(f"none of {total:,} images can be read: {shown}; --images says where image paths start.")
    if broken and not request.skip_broken:
        raise ValueError(
            f"{len(broken)} of {total:,} images cannot be read: {shown}; repair them, or leave them out with their "
            "captions (--skip-broken, in an experiment skip_broken = true). The features extracted so far are kept."
        )
    if empty := [name for name, each in extractions.items() if not each.progress["kept"]]:
        raise ValueError(f"no image of {empty[0]} can be read: {shown}.")
    for sentence in broken:
        logger.warning("%s", sentence)
    if broken:
        logger.warning("%d images are left out with their captions", len(broken))


def _write_split(folder: Path, part: Listing, extraction: Extraction, *, pack: bool) -> dict[str, int]:
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
    if changed := ", ".join(f"{images} {change}" for change, images in extraction.progress["changed"].items()):
        logger.info("%s: images made upright 8-bit RGB: %s", split, changed)
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
        for start, stop in blocks(len(texts), LISTED_ROWS):
            file.writelines(f"{text}\n" for text in texts.slice(start, stop - start).to_pylist())
