"""The ids that commands are given."""

from __future__ import annotations

from pathlib import Path

from aoq.pipeline.data.files import read_lines
from aoq.pipeline.search.vector_files import Given


def read_ids(given: str) -> list[str]:
    """One id a line of a text file, or those of `FILE::COLUMN`: a column of Parquet, Arrow or a saved data set."""
    name, _, column = given.partition("::")
    if not column and Path(name).suffix not in (".parquet", ".arrow", ".feather") and not Path(name).is_dir():
        return read_lines(Path(given))
    return Given.of(given).read_ids()
