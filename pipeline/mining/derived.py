"""Writing a table that was made of other tables: lists without certificates, and what they were made of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int32

from pipeline.artifact import write_atomically
from pipeline.mining.lists import Summary, row_groups
from pipeline.mining.table import (
    FORMAT_VERSION,
    MANIFEST,
    Direction,
    NegativeLists,
    list_writer,
    to_arrow,
    write_positives,
)

Made = tuple[Mapping[str, Any], Iterator[NegativeLists]]
"""What is said of a direction (its h, ...), and its lists from the first anchor on."""


def write_derived(
    output: Path,
    provenance: Mapping[str, Any],
    made: Mapping[Direction, Made],
    image_of: Int32[np.ndarray, " captions"],
) -> None:
    """The manifest comes last; row groups have one size, whatever the parts'."""
    output.mkdir(parents=True, exist_ok=True)
    write_positives(output, image_of)
    header = {"format_version": FORMAT_VERSION, **provenance}
    manifest: dict[str, Any] = {**header, "directions": {}}
    for direction, (said, parts) in made.items():
        about = {"direction": direction, **said}
        summary = Summary()
        with list_writer(output / f"{direction}.parquet", said["h"], {**header, **about}, "sources" in said) as lists:
            for group in row_groups(_tables(parts)):
                lists.write_table(group.cast(lists.schema))
                summary.add(group)
        manifest["directions"][direction] = {**about, **summary.figures()}
    write_atomically(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def _tables(parts: Iterator[NegativeLists]) -> Iterator[pa.Table]:
    first = 0
    for lists in parts:
        yield to_arrow(lists, first)
        first += len(lists)
