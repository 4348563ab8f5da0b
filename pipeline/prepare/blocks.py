"""Blocks of images as units of work, here or on the nodes of a cluster; results are appended to the arrays in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from aoq.pipeline.on_ray import Job, Opened
from aoq.pipeline.prepare import extraction
from aoq.pipeline.prepare.extraction import Arrays, Extracting, Extraction, ImageReader, ReadImage, concatenate_arrays
from aoq.pipeline.prepare.extractor import Extractor, Tokens
from aoq.pipeline.prepare.extractors import open_extractor
from aoq.pipeline.prepare.request import Request
from aoq.pipeline.prepare.sources.images import EncodedImages
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.units import Folder, Runner, Store, Unit, run_in_order, unit_name

READ_COLUMNS = pa.schema(
    {
        "problem": pa.string(),
        "sha256": pa.binary(),
        "width": pa.int32(),
        "height": pa.int32(),
        "changes": pa.list_(pa.string()),
        "thumbnail": pa.binary(),
    }
)
"""Columns of a block's table, one row per image; the extractor's follow as bytes, null if the image is unreadable."""
READ_BY_NODES = 16
"""Images that every node reads before the run starts."""
ROOM = 1_000_000_000
"""Approximate bytes of a process besides the weights: libraries, a batch in transit, and a block's results."""


def extract_blocks(
    extractions: Mapping[str, Extraction],
    readers: Mapping[str, ImageReader],
    job: Extracting,
    store: Store,
    run: Runner[Extracting],
    report: Callable[[], None],
) -> None:
    """Continue all splits after the last run. Batches are those of one process, so features are the same too."""
    size = -(-extraction.BLOCK_IMAGES // job.batch) * job.batch  # whole batches
    left = [
        (name, each.progress["done"] + start, each.progress["done"] + stop)
        for name, each in extractions.items()
        for start, stop in blocks(len(readers[name]) - each.progress["done"], size)
    ]
    units = [
        Unit((unit_name(name, start, stop),), partial(extract_block, readers[name].part(start, stop)))
        for name, start, stop in left
    ]
    with ExitStack() as stack:
        append = {name: stack.enter_context(each.appending()) for name, each in extractions.items()}

        def take(number: int, table: pa.Table) -> None:
            name, start, _ = left[number]
            arrays, batch = _from_table(table, job.extractor)
            _require_unreadable(readers[name], start, batch)
            append[name](arrays, batch)
            report()

        run_in_order(units, job, store, run, take)


def extract_block(reader: ImageReader, job: Extracting, store: Store) -> list[pa.Table]:
    parts = [*job.batches(reader, 0)]
    arrays = concatenate_arrays([arrays for arrays, _ in parts if arrays])
    return [_to_table(arrays, [image for _, batch in parts for image in batch], job.extractor)]


def _to_table(arrays: Arrays, batch: Sequence[ReadImage], extractor: Extractor) -> pa.Table:
    columns = {
        field.name: pa.array([getattr(image, field.name) for image in batch], field.type) for field in READ_COLUMNS
    }
    is_readable = np.array([not image.problem for image in batch])
    places = pa.array(np.cumsum(is_readable) - 1, mask=~is_readable)
    for name, column in extractor.columns.items():
        rows = np.ascontiguousarray(arrays.get(name, np.empty(0, column)))
        buffers = [None, pa.py_buffer(rows.data)]
        values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(column.itemsize), len(rows), buffers)
        columns[name] = values.take(places)
    return pa.table(columns)


def _from_table(table: pa.Table, extractor: Extractor) -> tuple[Arrays, list[ReadImage]]:
    """Return the arrays and the images that `_to_table` was given."""
    rows = table.select(READ_COLUMNS.names).to_pylist()
    batch = [ReadImage(None, **{**row, "changes": tuple(row["changes"])}) for row in rows]
    arrays = {}
    for name, column in extractor.columns.items():
        values = table[name].drop_null().combine_chunks()
        size = column.itemsize
        content = values.buffers()[1].slice(values.offset * size, len(values) * size)
        arrays[name] = np.frombuffer(content, column)
    return arrays, batch


def _require_unreadable(reader: ImageReader, start: int, batch: Sequence[ReadImage]) -> None:
    """Check that unreadable images are unreadable here too: an image that only some node cannot read is not broken."""
    for place, image in enumerate(batch, start):
        if image.problem and not reader[place].problem:
            raise ValueError(
                f"{reader.images.describe(place)} {image.problem} on the node that extracts it, and can be read here; "
                "all nodes must see the images at the same paths."
            )


def ship_extraction(job: Extracting, store: Folder, *, request: Request, reader: ImageReader) -> Job[Extracting]:
    """Describe the job to nodes: the extractor by name and weights, and a sample of the images."""
    there = replace(job, device=torch.device(job.device.type))  # any GPU that Ray assigns
    opened = partial(
        _open_there, request.extractor, request.tokens, job.extractor.fingerprint, there.device, job.batch, job.workers
    )
    return images_job(store, job.extractor.module, there.device.type, reader.images, len(reader), opened)


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
    sha256s = tuple(_sha256(sample, row) for row in range(len(places)))
    opened = partial(_open_in, Path.cwd(), open_there)
    memory = ROOM + sum(part.nbytes for part in module.state_dict().values())
    return Job(store, memory, device, opened, partial(_lacking, opened, sample, sha256s))


def _open_in(directory: Path, open_there: Callable[[], Opened]) -> Opened:
    with suppress(OSError):  # a node without the directory has a different sample
        os.chdir(directory)
    return open_there()


def _lacking(opened: Callable[[], object], sample: EncodedImages, sha256s: Sequence[str]) -> list[str]:
    """List what a node cannot open, or the first image whose content is different there."""
    try:
        opened()
    except (OSError, ValueError, ImportError) as error:
        return [f"cannot open what it needs ({error})"]
    wrong = [row for row, known in enumerate(sha256s) if _sha256(sample, row) != known]
    return [f"does not read {sample.describe(wrong[0])} as it is here"] if wrong else []


def _sha256(images: EncodedImages, row: int) -> str:
    """Hash an image's bytes; an unreadable one has no hash."""
    try:
        return sha256(images.read(row)).hexdigest()
    except (OSError, ValueError):
        return ""
