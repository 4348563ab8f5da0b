"""The ids that commands are given."""

from __future__ import annotations

from pathlib import Path

from aoq.pipeline.data.files import read_lines
from aoq.pipeline.hub import is_of_hub
from aoq.pipeline.search.column_files import COLUMNED
from aoq.pipeline.search.vector_files import Given


def read_ids(given: str) -> list[str]:
    """One id a line of a text file, or those of `FILE::COLUMN`: a column of Parquet, of Arrow or of a data set."""
    name, _, column = given.partition("::")
    has_columns = is_of_hub(name) or Path(name).suffix in COLUMNED or Path(name).is_dir()
    if not column and not has_columns:
        return read_lines(Path(given))
    return Given.of(given).read_ids()
