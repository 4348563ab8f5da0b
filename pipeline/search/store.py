"""Stores of the tables that units write: a folder, which survives a crash, or memory."""

from __future__ import annotations

import logging
import math
import os
import platform
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

logger = logging.getLogger(__name__)

CHECKSUM_BYTES = sha256().digest_size


@dataclass(frozen=True)
class Folder:
    """Arrow files with a checksum of their content, their name and the work that they are `of`. Each appears whole or
    not at all, and is read only unchanged, under the same name of the same work."""

    path: Path
    of: str = ""

    def has(self, name: str) -> bool:
        """Return whether the table is there, whole and undamaged."""
        path = self._file(name)
        if not path.is_file():
            return False
        if not self._is_whole(name):
            logger.warning("%s is damaged or of another search; making it again", path)
            return False
        return True

    def read(self, name: str) -> pa.Table:
        """Map the table: only what is used of it is read."""
        path = self._file(name)
        if not path.is_file() or not self._is_whole(name):
            raise ValueError(
                f"{path} was lost or damaged after it was written; run again: it is made again, and the others kept."
            )
        with pa.memory_map(str(path)) as file:
            content = file.read_buffer().slice(0, file.size() - CHECKSUM_BYTES)
        return pa.ipc.open_file(content).read_all()

    def write(self, name: str, table: pa.Table) -> None:
        temporary = self.path / f"{name}.tmp-{platform.node()}-{os.getpid()}"
        with pa.ipc.new_file(temporary, table.schema) as writer:
            writer.write_table(table)
        with temporary.open("r+b") as file:
            checksum = _checksum(file, self.of, name)
            file.write(checksum)
        os.replace(temporary, self._file(name))

    def drop(self, name: str) -> None:
        """Delete a table that was consumed elsewhere."""
        self._file(name).unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        """Delete the unfinished files of killed processes."""
        for path in self.path.glob("*.tmp-*"):
            path.unlink(missing_ok=True)

    def names(self, prefix: str) -> list[str]:
        """Names of whole tables, in order."""
        found = sorted(path.stem for path in self.path.glob(f"{prefix}*.unit"))
        return [name for name in found if self._is_whole(name)]

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.unit"

    def _is_whole(self, name: str) -> bool:
        """Check the hash once, and again if the file has changed."""
        found = self._file(name).stat()
        return _is_whole(self, name, (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


@lru_cache(maxsize=2**16)
def _is_whole(folder: Folder, name: str, stamp: tuple[int, ...]) -> bool:
    with folder._file(name).open("rb") as file:
        size = max(0, stamp[1] - CHECKSUM_BYTES)
        return _checksum(file, folder.of, name, size) == file.read()


def _checksum(file: BinaryIO, of: str, name: str, size: int | None = None) -> bytes:
    """Hash the file's first bytes, by default all of them, and leave the position behind them."""
    found, left = sha256(f"{of}\0{name}\0".encode()), math.inf if size is None else size
    while block := file.read(int(min(left, 2**20))):
        found.update(block)
        left -= len(block)
    return found.digest()


@dataclass(eq=False)
class Memory:
    """Tables that vanish with the process."""

    _tables: dict[str, pa.Table] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        return name in self._tables

    def read(self, name: str) -> pa.Table:
        return self._tables[name]

    def write(self, name: str, table: pa.Table) -> None:
        self._tables[name] = table

    def drop(self, name: str) -> None:
        self._tables.pop(name, None)

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self._tables if name.startswith(prefix))


Store = Folder | Memory
