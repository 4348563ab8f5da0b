"""Blocks of images as units of work for any process; their results are appended to the arrays in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from aoq.pipeline.on_ray import Job
from aoq.pipeline.prepare import extraction
from aoq.pipeline.prepare.extraction import Arrays, Extraction, extract_batch
from aoq.pipeline.prepare.extractor import Column, Extractor, Tokens
from aoq.pipeline.prepare.extractors import open_extractor
from aoq.pipeline.prepare.images_job import Sample, images_job
from aoq.pipeline.prepare.reader import Loading, Read, Reader, batches
from aoq.pipeline.prepare.request import Request
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.store import Folder, Store
from aoq.pipeline.search.units import Runner, Unit, run_in_order, unit_name

READ = pa.schema(
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


@dataclass(frozen=True)
class Extracting:
    """Tools of the units."""

    extractor: Extractor
    loading: Loading


class Block(NamedTuple):
    """Images of a split from the place `start` to before `stop`."""

    split: str
    start: int
    stop: int


def extract_blocks(
    extractions: Mapping[str, Extraction],
    readers: Mapping[str, Reader],
    job: Extracting,
    store: Store,
    run: Runner[Extracting],
    report: Callable[[], None],
) -> None:
    """Continue all splits after the last run. Batches are those of one process, so features are the same too.

    Raises:
        ValueError: for an image that can be read here, but not where its block was extracted.
    """
    left = [
        block
        for name, each in extractions.items()
        for block in blocks_from(name, each.progress["done"], len(readers[name]), job.loading.batch)
    ]
    units = [
        Unit((unit_name(*block),), partial(extract_block, readers[block.split].part(*block[1:]))) for block in left
    ]
    with ExitStack() as stack:
        append = {name: stack.enter_context(each.appending()) for name, each in extractions.items()}

        def take(number: int, table: pa.Table) -> None:
            block = left[number]
            arrays, batch = from_table(table, job.extractor)
            _require_unreadable(readers[block.split], block.start, batch)
            append[block.split](arrays, batch)
            report()

        run_in_order(units, job, store, run, take)


def blocks_from(split: str, done: int, images: int, batch: int) -> list[Block]:
    """Divide the rest of a split into blocks of whole batches, of about as many images as a kill may lose.

    >>> blocks_from("dev", 32, 1100, 32)[-1]
    Block(split='dev', start=1056, stop=1100)
    """
    size = -(-extraction.BLOCK // batch) * batch
    return [Block(split, done + start, done + stop) for start, stop in blocks(images - done, size)]


def extract_block(reader: Reader, job: Extracting, store: Store) -> list[pa.Table]:
    parts, reads = [], []
    for pixels, batch in batches(reader, 0, job.loading):
        if pixels:
            parts.append(extract_batch(job.extractor, pixels, batch, job.loading.device))
        reads += batch
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in job.extractor.columns} if parts else {}
    return [to_table(arrays, reads, job.extractor)]


def to_table(arrays: Arrays, batch: Sequence[Read], extractor: Extractor) -> pa.Table:
    """Make a block's table; `arrays` have rows for readable images only."""
    columns = {field.name: pa.array([getattr(read, field.name) for read in batch], field.type) for field in READ}
    is_readable = np.array([not read.problem for read in batch])
    places = pa.array(np.cumsum(is_readable) - 1, mask=~is_readable)
    for name, column in extractor.columns.items():
        rows = arrays.get(name, np.empty((0, *column.shape), column.dtype))
        content = pa.py_buffer(np.ascontiguousarray(rows).data)
        values = pa.FixedSizeBinaryArray.from_buffers(pa.binary(column.bytes), len(rows), [None, content])
        columns[name] = values.take(places)
    return pa.table(columns)


def from_table(table: pa.Table, extractor: Extractor) -> tuple[dict[str, np.ndarray], list[Read]]:
    """Return the arrays and the records that `to_table` was given."""
    rows = table.select(READ.names).to_pylist()
    batch = [Read(None, **{**row, "changes": tuple(row["changes"])}) for row in rows]
    return {name: _rows(table[name], column) for name, column in extractor.columns.items()}, batch


def _rows(values: pa.ChunkedArray, column: Column) -> np.ndarray:
    kept = values.drop_null().combine_chunks()
    content = kept.buffers()[1].slice(kept.offset * column.bytes, len(kept) * column.bytes)
    return np.frombuffer(content, column.dtype).reshape(len(kept), *column.shape)


def _require_unreadable(reader: Reader, start: int, batch: Sequence[Read]) -> None:
    """Check that unreadable images are unreadable here too: an image that only some node cannot read is not broken."""
    for place, read in enumerate(batch, start):
        if read.problem and not reader[place].problem:
            raise ValueError(
                f"{reader.images.describe(int(reader.rows[place]))} {read.problem} on the node that extracts it, and "
                "can be read here; all nodes must see the images at the same paths."
            )


def ship_extraction(job: Extracting, store: Folder, *, request: Request, reader: Reader) -> Job[Extracting]:
    """Describe the job to nodes: the extractor by name and weights, and a sample of the images."""
    loading = replace(job.loading, device=torch.device(job.loading.device.type))  # any GPU that Ray assigns
    open_there = partial(_open_there, request.extractor, request.tokens, job.extractor.fingerprint, loading)
    sample = Sample.of(reader.images, reader.rows)
    return images_job(store, job.extractor.module, loading.device.type, sample, open_there)


def _open_there(name: str, tokens: Tokens, fingerprint: str, loading: Loading) -> Extracting:
    extractor = open_extractor(name, tokens)
    if extractor.fingerprint != fingerprint:
        raise ValueError(f"the weights of {name} are not the same on all nodes; put the same everywhere.")
    extractor.to(loading.device)
    return Extracting(extractor, loading)
