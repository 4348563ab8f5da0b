"""Prepare a dataset folder from images and captions: features first, then its other files."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.console import Reporter, visible
from aoq.pipeline.data.check import leaks
from aoq.pipeline.data.folder import PREPARED
from aoq.pipeline.engine import Engine
from aoq.pipeline.extras import import_extra
from aoq.pipeline.files import digest, file_sha256, write_atomically
from aoq.pipeline.on_ray import choose_runner, load_ray
from aoq.pipeline.prepare.blocks import extract_blocks, ship_extraction
from aoq.pipeline.prepare.extraction import Extracting, Extraction, ImageReader, has_thumbnail
from aoq.pipeline.prepare.extractor import Extractor
from aoq.pipeline.prepare.extractors import open_extractor
from aoq.pipeline.prepare.listing import draw_splits, hash_images, list_source, named_splits
from aoq.pipeline.prepare.photographs import write_photographs
from aoq.pipeline.prepare.sources.records import SHOWN_BROKEN, Listing, clean_captions
from aoq.pipeline.search.units import Folder

logger = logging.getLogger(__name__)


def prepare_folder(
    source: Source,
    folder: Path,
    work: Path,
    engine: Engine,
    *,
    thumbnails: bool = True,
    batch: int = 32,
    report: Reporter,
) -> tuple[Extractor, dict[str, dict[str, int]]]:
    """Fill `folder` with a dataset folder; return the extractor and the counts of each split.

    `work` keeps what the next run needs until the folder is published. On Ray the nodes extract blocks of images there.
    """
    import_extra("PIL.Image", "prepare", "aoq prepare")  # before anything is read
    if engine.backend == "ray":
        load_ray()
    listing = list_source(source)
    logger.info("%s is %s of %d images", source.path, listing.kind, len(listing))
    if source.restval == "drop" and listing.splits is not None:
        listing = listing.take(np.flatnonzero(listing.splits.to_numpy(zero_copy_only=False) != "restval"))
    listing = clean_captions(listing)
    _require_files(source, listing)
    folder.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    device = engine.torch_device()
    extractor = open_extractor(source.extractor, source.tokens)
    thumbs = folder / "thumbs" if thumbnails else None
    key = _begin_job(source, listing, extractor, thumbs, folder, work)
    if listing.splits is not None and not source.split_sizes:
        listing = named_splits(listing)
    else:
        if not (file := work / "hashes.bin").is_file():
            write_atomically(file, b"".join(hash_images(listing.images, len(listing), report)))
        listing = draw_splits(listing, source.split_sizes, source.seed, np.frombuffer(file.read_bytes(), "S32"))
    extractor.to(device)
    job = Extracting(extractor, device, min(batch, extractor.preprocessing.most_at_once), _workers(engine))
    assert listing.splits is not None  # they were named or drawn
    split_of = listing.splits.to_numpy(zero_copy_only=False)
    names = sorted({*split_of.tolist()}, key=lambda name: (name != "train", name))
    parts = {name: listing.take(np.flatnonzero(split_of == name)) for name in names}
    extractions = [Extraction(folder, work, name, part, extractor, thumbs) for name, part in parts.items()]

    def tell() -> None:
        report(sum(each.progress["done"] for each in extractions), len(listing), "images")

    if engine.backend == "inprocess":
        for each in extractions:
            with each.appending() as append:
                for arrays, images in job.batches(each.reader, each.progress["done"]):
                    append(arrays, images)
                    tell()
    else:
        store = Folder.opened(work / "blocks", digest([key, job.batch]))
        reader = ImageReader(listing.images, len(listing), extractor.preprocessing, thumbnails)
        ship = partial(ship_extraction, source=source, reader=reader)
        extract_blocks(extractions, job, store, choose_runner(engine, ship), tell)
    _heed_broken(source, extractions)
    counts = {each.split: _write_split(folder, each, pack=source.pack) for each in extractions}
    hashes = {each.split: each.records["sha256"].tolist() for each in extractions}
    for split, digests in hashes.items():
        if split != "train" and (found := leaks(digests, hashes.get("train", ()))):
            sentence = "%s: %d images are in train too, the first is image %d (%d of train): a leak"
            logger.warning(sentence, split, len(found), *found[0])
    if outside := sum(thumbs is not None and not has_thumbnail(thumbs, name) for name in listing.ids.to_pylist()):
        logger.warning(
            "%d images have no thumbnail: their paths are absolute or contain ..; give paths below --images", outside
        )
    about = {
        "source": source.path,
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
        "drawn": {"sizes": source.split_sizes, "seed": source.seed} if source.split_sizes else None,
        "skipped": sum(len(each.progress["broken"]) for each in extractions),
        "sha256": {path.name: file_sha256(path) for path in sorted(folder.glob("?*_*")) if path.is_file()},
    }
    write_atomically(folder / PREPARED, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    return extractor, counts


def _begin_job(
    source: Source, listing: Listing, extractor: Extractor, thumbs: Path | None, folder: Path, work: Path
) -> str:
    """Remove results of another request; record this one and return its key."""
    weights = [source.extractor, source.tokens, repr(extractor.preprocessing), extractor.fingerprint]
    drawn = [source.split_sizes, source.seed, source.restval]
    key = digest([listing.images.identity(), listing.texts_sha256, drawn, weights, thumbs is not None])
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


def _workers(engine: Engine) -> int:
    """Processes that read ahead (on Ray, per unit): one per core, except on a machine with one core."""
    cores = engine.threads or (len(os.sched_getaffinity(0)) if engine.backend == "inprocess" else 1)
    return cores if cores > 1 else 0


def _require_files(source: Source, listing: Listing) -> None:
    paths = [path for row in range(len(listing)) if (path := listing.images.path(row)) is not None]
    missing = [path for path in paths if not os.path.exists(path)]
    if missing and (not source.skip_broken or len(missing) == len(listing)):
        raise ValueError(
            f"{len(missing):,} of {len(listing):,} images do not exist, such as {', '.join(missing[:SHOWN_BROKEN])}; "
            "give the folder of the paths as --images, or leave out missing images with --skip-broken."
        )


def _heed_broken(source: Source, extractions: Sequence[Extraction]) -> None:
    broken = [
        f"{each.listing.images.describe(place)} {problem}"
        for each in extractions
        for place, problem in each.progress["broken"]
    ]
    more = f"; and {len(broken) - SHOWN_BROKEN} more" if len(broken) > SHOWN_BROKEN else ""
    shown = "; ".join(broken[:SHOWN_BROKEN]) + more
    if empty := [each.split for each in extractions if not each.progress["kept"]]:
        raise ValueError(f"no image of {empty[0]} can be read: {shown}; give the folder of the paths as --images.")
    if broken and not source.skip_broken:
        total = sum(len(each.listing) for each in extractions)
        raise ValueError(
            f"{len(broken)} of {total:,} images cannot be read: {shown}; repair them, or leave them out with their "
            "captions (--skip-broken, in an experiment skip_broken = true), which keeps the features extracted so far."
        )
    for sentence in broken:
        logger.warning("%s", sentence)
    if broken:
        logger.warning("%d images are left out with their captions", len(broken))


def _write_split(folder: Path, extraction: Extraction, *, pack: bool) -> dict[str, int]:
    """Write a split's other files, and the headers of its arrays last; count its images, captions and copies."""
    split, records = extraction.split, extraction.records
    listing = extraction.listing.take(np.asarray(records["place"]))
    image_of = np.repeat(np.arange(len(listing), dtype=np.int32), np.diff(listing.captions.offsets.to_numpy()))
    _, first, of_image = np.unique(records["sha256"].view("S32"), return_index=True, return_inverse=True)
    identity = first[of_image.reshape(-1)].astype(np.int32)  # the first image with the content of each
    _write_lines(folder / f"{split}_ids.txt", map(visible, listing.ids.to_pylist()))
    _write_lines(folder / f"{split}_caps.txt", listing.captions.flatten().to_pylist())
    np.save(folder / f"{split}_pairs.npy", image_of)
    np.save(folder / f"{split}_identity.npy", identity)
    write_photographs(folder / f"{split}_images.parquet", listing.ids, listing.images, records, pack=pack)
    extraction.finish()
    if copies := int((identity != np.arange(len(identity))).sum()):
        message = "%s: %d images repeat earlier ones byte for byte; %s_identity.npy says which are the same"
        logger.warning(message, split, copies, split)
    return {"images": len(listing), "captions": len(image_of), "copies": copies}


def _write_lines(path: Path, texts: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{text}\n" for text in texts)
