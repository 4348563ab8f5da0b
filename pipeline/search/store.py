"""Where units of work leave their tables: a folder, which survives a crash, or memory."""

from __future__ import annotations

import logging
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

logger = logging.getLogger(__name__)

GROUP_ROWS = 2**16

Range = tuple[str, int, int]
"""The rows whose value in a column, which rises, is from a start to before a stop."""


@runtime_checkable
class Store(Protocol):
    """Tables by name."""

    def has(self, name: str) -> bool:
        """Whether the table is there, whole and undamaged."""

    def read(self, name: str, within: Range | None = None) -> pa.Table: ...

    def write(self, name: str, table: pa.Table) -> None: ...

    def names(self, prefix: str) -> list[str]: ...


@dataclass(frozen=True)
class Folder:
    """Parquet files with page checksums; each appears whole or not at all."""

    path: Path

    def has(self, name: str) -> bool:
        path = self._file(name)
        if not path.is_file():
            return False
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for group in range(file.num_row_groups):
                    file.read_row_group(group)
        except (OSError, pa.ArrowException) as error:
            logger.warning("%s is damaged (%s); mining it again", path, error)
            return False
        return True

    def read(self, name: str, within: Range | None = None) -> pa.Table:
        filters = [(within[0], ">=", within[1]), (within[0], "<", within[2])] if within else None
        return pq.read_table(self._file(name), filters=filters, page_checksum_verification=True)

    def write(self, name: str, table: pa.Table) -> None:
        temporary = self.path / f"{name}.tmp-{platform.node()}-{os.getpid()}"
        pq.write_table(
            table,
            temporary,
            compression="none",  # they do not live long
            use_dictionary=False,
            write_page_checksum=True,
            row_group_size=GROUP_ROWS,
        )
        os.replace(temporary, self._file(name))

    def names(self, prefix: str) -> list[str]:
        return sorted(path.stem for path in self.path.glob(f"{prefix}*.parquet"))

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.parquet"


class Memory:
    """Tables that are gone with the process."""

    def __init__(self) -> None:
        self._tables: dict[str, pa.Table] = {}

    def has(self, name: str) -> bool:
        return name in self._tables

    def read(self, name: str, within: Range | None = None) -> pa.Table:
        table = self._tables[name]
        if within is None:
            return table
        column, *ends = within
        first, last = np.searchsorted(table[column].to_numpy(), ends)
        return table.slice(first, last - first)

    def write(self, name: str, table: pa.Table) -> None:
        self._tables[name] = table

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self._tables if name.startswith(prefix))
