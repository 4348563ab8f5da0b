"""The ids that commands are given."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from aoq.pipeline.columns import open_parquet
from aoq.pipeline.data.files import read_lines


def read_ids(given: str) -> list[str]:
    """One id a line of a text file, or those of `FILE.parquet::COLUMN`, text or whole numbers."""
    name, _, column = given.partition("::")
    path = Path(name)
    if path.suffix != ".parquet":
        return read_lines(Path(given))
    with open_parquet(path) as file:
        kinds = {field.name: field.type for field in file.file.schema_arrow}
    names = [name for name, kind in kinds.items() if pa.types.is_string(kind) or pa.types.is_integer(kind)]
    if column not in names:
        raise ValueError(f"{given} names no column of ids; those of text or whole numbers are {names}: {path}::NAME.")
    with open_parquet(path, pa.schema({column: kinds[column]})) as file:
        return [str(value) for value in file.read()[column].to_pylist()]
