"""Which kind of source something is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aoq.pipeline.prepare.sources import tables
from aoq.pipeline.prepare.sources.layout import Columns
from aoq.pipeline.prepare.sources.listing import Listing


class Kind(NamedTuple):
    """`holds` looks at names alone; `read` is given the folder where image paths start, if the user names one."""

    holds: Callable[[Path], bool]
    read: Callable[[Path, Path | None, Columns], Listing]


KINDS = {
    "a CSV, TSV, JSON lines or Parquet table, or a folder with metadata.csv": Kind(tables.is_table, tables.list_table),
}
"""In the order in which they are tried."""


def open_source(source: str, images: Path | None, columns: Columns) -> Listing:
    """What a source holds.

    Raises:
        FileNotFoundError: where there is nothing.
        ValueError: for a source of no known kind, or one that is not what it seems to be.
    """
    path = Path(source)
    if images is not None and not images.is_dir():
        raise FileNotFoundError(f"--images: there is no folder {images}.")
    if not path.exists():
        raise FileNotFoundError(f"{source} does not exist.")
    for kind in KINDS.values():
        if kind.holds(path):
            return kind.read(path, images, columns)
    known = "; ".join(KINDS)
    raise ValueError(f"{source} is no source that is known: {known}.")
