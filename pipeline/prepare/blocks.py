"""Blocks of images as units of work, here or on the nodes of a cluster; results are appended to the arrays in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.on_ray import Job, Opened
from aoq.pipeline.prepare import extraction
from aoq.pipeline.prepare.extraction import Extracting, Extraction, ImageReader, ReadImage
from aoq.pipeline.prepare.extractor import Tokens
from aoq.pipeline.prepare.extractors import open_extractor
from aoq.pipeline.prepare.sources.images import EncodedImages
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.units import Folder, Runner, Store, Unit, run_in_order, unit_name

READ_BY_NODES = 16
"""Images that every node reads before the run starts."""
PROCESS_BYTES = 1_000_000_000
"""Approximate bytes of a process besides the weights: libraries, a batch in transit, and a block's results."""


def extract_blocks(
    extractions: Sequence[Extraction],
    job: Extracting,
    store: Store,
    run: Runner[Extracting],
    report: Callable[[], None],
) -> None:
    """Continue all splits after the last run. Batches are those of one process, so features are the same too."""
    size = -(-extraction.BLOCK_IMAGES // job.batch) * job.batch  # whole batches
    left = [
        (each, each.progress["done"] + start, each.progress["done"] + stop)
        for each in extractions
        for start, stop in blocks(len(each.listing) - each.progress["done"], size)
    ]
    units = []
    for each, start, stop in left:
        images = each.listing.images.take(np.arange(start, stop))
        reader = replace(each.reader, images=images, count=stop - start)
        units.append(Unit((unit_name(each.split, start, stop),), partial(extract_block, reader)))
    with ExitStack() as stack:
        append = {each.split: stack.enter_context(each.appending()) for each in extractions}

        def take(number: int, table: pa.Table) -> None:
            (each, start, _), rows = left[number], table.to_pylist()
            reader = each.reader
            content = {name: b"".join(row.pop(name) or b"" for row in rows) for name in job.extractor.columns}
            batch = [ReadImage(**row) for row in rows]
            for place, image in enumerate(batch, start):
                # An image that only some node cannot read is not broken.
                if image.problem and not reader[place].problem:
                    raise ValueError(
                        f"{reader.images.describe(place)} {image.problem} on the node that extracts it, but can be "
                        "read here; all nodes must see the images at the same paths."
                    )
            columns = job.extractor.columns.items()
            append[each.split]({name: np.frombuffer(content[name], column) for name, column in columns}, batch)
            report()

        run_in_order(units, job, store, run, take)


def extract_block(reader: ImageReader, job: Extracting, store: Store) -> list[pa.Table]:
    """Extract images as rows, with the extractor's arrays as bytes; null if an image is unreadable."""
    rows = []
    for arrays, batch in job.batches(reader, 0):
        readable = iter(zip(*arrays.values(), strict=True))
        for image in batch:
            features = dict.fromkeys(job.extractor.columns)
            if not image.problem:
                features = {name: part.tobytes() for name, part in zip(arrays, next(readable), strict=True)}
            rows.append(image._asdict() | features)
    return [pa.Table.from_pylist(rows)]


def ship_extraction(job: Extracting, store: Folder, *, source: Source, reader: ImageReader) -> Job[Extracting]:
    """Describe the job to nodes: the extractor by name and weights, and a sample of the images."""
    device = torch.device(job.device.type)  # any GPU that Ray assigns
    opened = partial(
        _open_there, source.extractor, source.tokens, job.extractor.fingerprint, device, job.batch, job.workers
    )
    return images_job(store, job.extractor.module, device.type, reader.images, len(reader), opened)


def _open_there(
    name: str, tokens: Tokens, fingerprint: str, device: torch.device, batch: int, workers: int
) -> Extracting:
    extractor = open_extractor(name, tokens)
    if extractor.fingerprint != fingerprint:
        raise ValueError(f"the weights of {name} are not the same on all nodes; put the same everywhere.")
    extractor.to(device)
    return Extracting(extractor, device, batch, workers)


def images_job(
    store: Folder, module: nn.Module, device: str, images: EncodedImages, count: int, open_there: Callable[[], Opened]
) -> Job[Opened]:
    """Make a job of units that need memory for the module, on nodes that read a sample of the images as it is here.

    `open_there` is called in this directory, where relative paths start; it raises ValueError if anything differs.
    """
    places = np.unique(np.linspace(0, count - 1, READ_BY_NODES, dtype=np.int64))
    sample = images.take(places)
    sha256s = tuple(map(sample.sha256, range(len(places))))
    opened = partial(_open_in, Path.cwd(), open_there)
    memory = PROCESS_BYTES + sum(part.nbytes for part in module.state_dict().values())
    return Job(store, memory, device, opened, partial(_lacking, opened, sample, sha256s))


def _open_in(directory: Path, open_there: Callable[[], Opened]) -> Opened:
    with suppress(OSError):  # a node without the directory has a different sample
        os.chdir(directory)
    return open_there()


def _lacking(opened: Callable[[], object], sample: EncodedImages, sha256s: Sequence[bytes | None]) -> list[str]:
    """List what a node cannot open, or the first image whose content is different there."""
    try:
        opened()
    except (OSError, ValueError, ImportError) as error:
        return [f"cannot open what it needs ({error})"]
    wrong = [row for row, known in enumerate(sha256s) if sample.sha256(row) != known]
    return [f"does not read {sample.describe(wrong[0])} as it is here"] if wrong else []
