"""Where units keep their tables: in a folder, which survives a crash, or in memory."""

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
    """Arrow files, each with a checksum of its content, its name and the job that it is `of`.

    A file appears whole or not at all, and is read only if it is unchanged and belongs to the same job.
    """

    path: Path
    of: str = ""

    def has(self, name: str) -> bool:
        """Return whether the table exists and is undamaged."""
        path = self._file(name)
        if not path.is_file():
            return False
        if not self._is_whole(name):
            logger.warning("%s is damaged or belongs to another search; making it again", path)
            return False
        return True

    def read(self, name: str) -> pa.Table:
        """Map the table, so that only the used parts are read."""
        path = self._file(name)
        if not path.is_file() or not self._is_whole(name):
            raise ValueError(
                f"{path} was lost or damaged after it was written; run again: only this file is made again."
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
        """Delete a table that was consumed."""
        self._file(name).unlink(missing_ok=True)

    def clear_unfinished(self) -> None:
        """Delete the temporary files of killed processes."""
        for path in self.path.glob("*.tmp-*"):
            path.unlink(missing_ok=True)

    def names(self, prefix: str) -> list[str]:
        """Return the names of undamaged tables, in order."""
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
    """Hash the first `size` bytes, by default all, and leave the file position after them."""
    found, left = sha256(f"{of}\0{name}\0".encode()), math.inf if size is None else size
    while block := file.read(int(min(left, 2**20))):
        found.update(block)
        left -= len(block)
    return found.digest()


@dataclass(eq=False)
class Memory:
    """Tables in this process's memory."""

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
