"""How a writer of another format puts down what it makes, and what it says of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

GROUP_BYTES = 64_000_000


@dataclass(frozen=True)
class Written:
    """So many rows (lines) are in the file; so many anchors are not, which lack what a row needs."""

    rows: int
    anchors_left_out: int = 0


class RowGroups:
    """Writes tables of one schema to a Parquet file, in row groups of about 64 MB."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
        self._waiting: list[pa.Table] = []
        self.rows = 0

    def __enter__(self) -> RowGroups:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        self.rows += len(table)
        if sum(waiting.nbytes for waiting in self._waiting) >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            group = pa.concat_tables(self._waiting)
            self._writer.write_table(group, row_group_size=max(1, len(group)))
        self._waiting = []
