"""Writing a table: lists of both directions, their certificates if a search gave any, and the manifest last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int32

from pipeline.artifact import write_atomically
from pipeline.mining.lists import Summary, certificates, row_groups
from pipeline.mining.table import (
    CERTIFICATES,
    FORMAT_VERSION,
    MANIFEST,
    Direction,
    NegativeLists,
    list_writer,
    to_arrow,
    write_positives,
)

Made = tuple[Mapping[str, Any], Iterable[pa.Table]]
"""What is said of a direction (its h, ...), and its lists from the first anchor on."""


def write_table(
    output: Path,
    provenance: Mapping[str, Any],
    made: Mapping[Direction, Made],
    image_of: Int32[np.ndarray, " captions"],
) -> None:
    """Row groups have one size, whatever the parts'; a column `bound` (`lists_table`) goes into certificates."""
    output.mkdir(parents=True, exist_ok=True)
    write_positives(output, image_of)
    header = {"format_version": FORMAT_VERSION, **provenance}
    manifest: dict[str, Any] = {**header, "directions": {}}
    for direction, (said, parts) in made.items():
        about = {"direction": direction, **said}
        figures = _write_direction(output, direction, {**header, **about}, parts)
        manifest["directions"][direction] = {**about, **figures}
    write_atomically(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def as_tables(parts: Iterable[NegativeLists]) -> Iterator[pa.Table]:
    first = 0
    for lists in parts:
        yield to_arrow(lists, first)
        first += len(lists)


def _write_direction(
    output: Path, direction: Direction, footer: Mapping[str, Any], parts: Iterable[pa.Table]
) -> dict[str, Any]:
    summary, beside = Summary(), None
    with ExitStack() as files:
        lists = files.enter_context(
            list_writer(output / f"{direction}.parquet", footer["h"], footer, "sources" in footer)
        )
        for group in row_groups(parts):
            if "bound" in group.column_names:
                beside = beside or files.enter_context(
                    pq.ParquetWriter(output / f"{direction}.certificates.parquet", CERTIFICATES, compression="zstd")
                )
                beside.write_table(certificates(group))
            summary.add(group)
            lists.write_table(group.select(lists.schema.names).cast(lists.schema))
    return summary.figures()
