"""Small tables of rows that people write: Parquet or CSV with named columns, checked against the split."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from jaxtyping import Shaped

SUFFIXES = (".parquet", ".csv")


def read_rows(
    path: Path, columns: Mapping[str, pa.DataType], *, sizes: Mapping[str, int], optional: str = ""
) -> dict[str, Shaped[np.ndarray, " rows"]]:
    """The columns of a .parquet or .csv file; those in `sizes` are rows of the split, 0 to size - 1.

    A column named `optional` may be missing, and is then missing here.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a .csv or .parquet with columns {', '.join(columns)}.")
    try:
        table = pq.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
        there = [name for name in columns if name != optional or name in table.column_names]
        if empty := [name for name in there if table[name].null_count]:
            raise ValueError(f"column {empty[0]} is empty in some rows")
        found = {name: table[name].cast(columns[name]).to_numpy() for name in there}
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise ValueError(f"{path}: {error}; it needs columns {', '.join(columns)}, in every row.") from None
    for name, size in sizes.items():
        rows = found[name]
        if len(rows) and not 0 <= rows.min() <= rows.max() < size:
            raise ValueError(f"{path} names {name} {rows.min()} to {rows.max()}, and the split has 0 to {size - 1}.")
    return found
