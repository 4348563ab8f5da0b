"""Columns of Parquet and Arrow files, of saved data sets (`datasets`) and of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
from typing_extensions import TypedDict

from aoq.pipeline.columns import open_parquet
from aoq.pipeline.hub import load_splits
from aoq.pipeline.reading import read_json, reading
from aoq.pipeline.search.problem import BLOCK

SAVED = "state.json"
"""The file that `save_to_disk` writes into the folder of a data set."""


@runtime_checkable
class Columns(Protocol):
    """Rows stored by column."""

    schema: pa.Schema
    count: int

    def column(self, name: str) -> Iterator[Any]:
        """Iterate over the arrays of a column, up to `BLOCK` rows each, in order."""


class ParquetColumns:
    """A Parquet file, column by column."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_parquet(path) as file:
            self.schema, self.count = file.file.schema_arrow, len(file)

    def column(self, name: str) -> Iterator[Any]:
        with open_parquet(self.path) as file:
            for batch in file.batches(BLOCK, [name]):
                yield batch.column(0).combine_chunks()


class ArrowColumns:
    """Arrow files one after another, each in the format of files (Feather) or of streams, column by column."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths, self.count, schemas = paths, 0, []
        for path in paths:
            with _opened_arrow(path, [0]) as batches:
                self.count += sum(batch.num_rows for batch in batches)
            with _opened_arrow(path) as batches:
                schemas.append(batches.schema.remove_metadata())
            if schemas[-1] != schemas[0]:
                raise ValueError(f"{path} has other columns than {paths[0]}, which is of the same data set.")
        self.schema = schemas[0]

    def column(self, name: str) -> Iterator[Any]:
        for path in self.paths:
            with _opened_arrow(path, [self.schema.names.index(name)]) as batches:
                for batch in batches:
                    column = batch.column(0)
                    column.validate(full=True)  # a hostile file's offsets may point anywhere
                    yield from (column.slice(start, BLOCK) for start in range(0, len(column), BLOCK))


@dataclass(frozen=True)
class _Batches:
    schema: pa.Schema
    batches: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.batches


@contextmanager
def _opened_arrow(path: Path, fields: Sequence[int] = ()) -> Iterator[_Batches]:
    """Open the schema and the batches of these fields; the batches stay on disk until they are used."""
    options = pa.ipc.IpcReadOptions(included_fields=list(fields), use_threads=False)
    with reading(path, "an Arrow file"), pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source, options=options)
        except pa.ArrowInvalid:
            source.seek(0)
            stream = pa.ipc.open_stream(source, options=options)
            yield _Batches(stream.schema, iter(stream))
        else:
            yield _Batches(file.schema, map(file.get_batch, range(file.num_record_batches)))


class HubColumns:
    """One split of a data set of the hub.

    Raises:
        ValueError: if there are several splits and none is named.
    """

    def __init__(self, given: str) -> None:
        splits = load_splits(given)
        if len(splits) > 1:
            raise ValueError(f"{given} has the splits {sorted(splits)}; name one: {given}@SPLIT::COLUMN.")
        (self.rows,) = (split.with_format("arrow") for split in splits.values())
        self.schema, self.count = self.rows.features.arrow_schema.remove_metadata(), len(self.rows)

    def column(self, name: str) -> Iterator[Any]:
        for table in self.rows.select_columns([name]).iter(batch_size=BLOCK):
            yield table[name].combine_chunks()


class _DataFile(TypedDict):
    filename: str


class _Saved(TypedDict):
    _data_files: list[_DataFile]


def shards_of(folder: Path) -> list[Path]:
    """Files of a data set that `datasets` saved, in order."""
    state = read_json(folder / SAVED, _Saved, remedy="save the data set again")
    paths = [folder / file["filename"] for file in state["_data_files"]]
    if not paths or state.get("_indices_data_files") or any(path.parent != folder for path in paths):
        raise ValueError(f"{folder / SAVED} names no files of rows in order; save the data set again.")
    return paths


COLUMNED: dict[str, Callable[[Path], Columns]] = {
    ".parquet": ParquetColumns,
    ".arrow": lambda path: ArrowColumns([path]),
    ".feather": lambda path: ArrowColumns([path]),
}
"""Readers of column files, by extension."""
