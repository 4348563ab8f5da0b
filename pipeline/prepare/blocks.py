"""Blocks of images as units of work for any process; their results are appended to the arrays in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from aoq.pipeline.prepare import extraction
from aoq.pipeline.prepare.extraction import Extraction, extracted
from aoq.pipeline.prepare.extractors.extractor import Column, Extractor
from aoq.pipeline.prepare.reader import Loading, Read, Reader, batches
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.store import Store
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
"""Columns of a block's table, one row per image; the extractor's follow as bytes, null if the image has none."""


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
    appended: Callable[[], None],
) -> None:
    """Continue all splits after the last run. Batches are those of one process, so features are the same too.

    Raises:
        ValueError: for an image that can be read here, but not where its block was done.
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
            made, batch = from_table(table, job.extractor)
            _require_unreadable(readers[block.split], block.start, batch)
            append[block.split](made, batch)
            appended()

        run_in_order(units, job, store, run, take)


def blocks_from(split: str, done: int, images: int, batch: int) -> list[Block]:
    """Divide into blocks of whole batches, no larger than a kill may lose; the last block has the rest.

    >>> blocks_from("dev", 32, 1100, 32)[-1]
    Block(split='dev', start=1056, stop=1100)
    """
    size = -(-extraction.BLOCK // batch) * batch
    return [Block(split, done + start, done + stop) for start, stop in blocks(images - done, size)]


def extract_block(reader: Reader, job: Extracting, store: Store) -> list[pa.Table]:
    """Extract features of the reader's images, with their records."""
    made, reads = [], []
    for seen, batch in batches(reader, 0, job.loading):
        if seen:
            made.append(extracted(job.extractor, seen, batch, job.loading.device))
        reads += batch
    arrays = {name: np.concatenate([part[name] for part in made]) for name in job.extractor.columns} if made else {}
    return [to_table(arrays, reads, job.extractor)]


def to_table(made: Mapping[str, np.ndarray], batch: Sequence[Read], extractor: Extractor) -> pa.Table:
    """Make a table; `made` has rows for readable images alone."""
    known = {field.name: pa.array([getattr(read, field.name) for read in batch], field.type) for field in READ}
    is_whole = np.array([not read.problem for read in batch])
    places = pa.array(np.cumsum(is_whole) - 1, mask=~is_whole)
    for name, column in extractor.columns.items():
        rows = made.get(name, np.empty((0, *column.shape), column.dtype))
        content = pa.py_buffer(np.ascontiguousarray(rows).data)
        whole = pa.FixedSizeBinaryArray.from_buffers(pa.binary(column.bytes), len(rows), [None, content])
        known[name] = whole.take(places)
    return pa.table(known)


def from_table(table: pa.Table, extractor: Extractor) -> tuple[dict[str, np.ndarray], list[Read]]:
    """Return the arguments of `to_table`."""
    rows = table.select(READ.names).to_pylist()
    batch = [Read(None, **{**row, "changes": tuple(row["changes"])}) for row in rows]
    return {name: _rows(table[name], column) for name, column in extractor.columns.items()}, batch


def _rows(values: pa.ChunkedArray, column: Column) -> np.ndarray:
    whole = values.drop_null().combine_chunks()
    content = whole.buffers()[1].slice(whole.offset * column.bytes, len(whole) * column.bytes)
    return np.frombuffer(content, column.dtype).reshape(len(whole), *column.shape)


def _require_unreadable(reader: Reader, start: int, batch: Sequence[Read]) -> None:
    """Check that an image is unreadable here too: one that only some machine cannot read is not broken."""
    for place, read in enumerate(batch, start):
        if read.problem and not reader[place].problem:
            raise ValueError(
                f"{reader.images.describe(int(reader.rows[place]))} {read.problem} on the node that extracts it, and "
                "can be read here; all nodes must see the images at the same paths."
            )
