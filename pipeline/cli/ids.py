"""The ids that commands are given."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from aoq.pipeline.data.files import read_lines
from aoq.pipeline.hub import is_of_hub
from aoq.pipeline.vector_files import COLUMNED, Columns, Given


def read_ids(given: str) -> list[str]:
    """One id a line of a text file, or those of `FILE::COLUMN`: a column of Parquet, of Arrow or of a data set."""
    name, _, column = given.partition("::")
    has_columns = is_of_hub(name) or Path(name).suffix in COLUMNED or Path(name).is_dir()
    if not column and not has_columns:
        return read_lines(Path(given))
    path, part = opened = Given.of(given)
    if not isinstance(columns := opened.read(), Columns):
        raise ValueError(f"{path} holds vectors alone; ids are a column of {', '.join(COLUMNED)}.")
    if part not in (names := columns.named(_holds_ids)):
        given = given.removesuffix("::")
        raise ValueError(f"{given} names no column of ids; those of texts or whole numbers are {names}: {path}::NAME.")
    ids = [value for array in columns.read(part) for value in array.to_pylist()]
    if None in ids:
        raise ValueError(f"{path}: row {ids.index(None)} has no id in column {part!r}; give it one.")
    return list(map(str, ids))


def _holds_ids(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return is_text or pa.types.is_integer(kind)
