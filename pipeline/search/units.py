"""Units of work, the stores of their tables, how to run them, and the search backends that plan them."""

from __future__ import annotations

import logging
import os
import platform
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import pyarrow as pa

from aoq.pipeline.search.problem import Direction, Problem

logger = logging.getLogger(__name__)

_CHECKSUM_BYTES = sha256().digest_size


@dataclass(frozen=True)
class Folder:
    """Arrow files, each with a checksum of its content, its name and its job, `of`.

    A file appears whole or not at all, and is read only if it is unchanged and belongs to this job.
    """

    path: Path
    of: str = ""

    def has(self, name: str) -> bool:
        """Return whether the table exists and is undamaged."""
        is_whole = self._is_whole(name)
        if not is_whole and (path := self._file(name)).is_file():
            logger.warning("%s is damaged or belongs to another search; making it again", path)
        return is_whole

    def read(self, name: str) -> pa.Table:
        """Map the table, so that only the used parts are read."""
        path = self._file(name)
        if not self._is_whole(name):
            raise ValueError(
                f"{path} was lost or damaged after it was written; run again: only this file is made again."
            )
        with pa.memory_map(str(path)) as file:
            content = file.read_buffer().slice(0, file.size() - _CHECKSUM_BYTES)
        return pa.ipc.open_file(content).read_all()

    def write(self, name: str, table: pa.Table) -> None:
        temporary = self.path / f"{name}.tmp-{platform.node()}-{os.getpid()}"
        with pa.ipc.new_file(temporary, table.schema) as writer:
            writer.write_table(table)
        with temporary.open("r+b") as file:
            file.write(_checksum(file, self.of, name, temporary.stat().st_size))
        os.replace(temporary, self._file(name))

    def drop(self, name: str) -> None:
        """Delete a table that was consumed."""
        self._file(name).unlink(missing_ok=True)

    @classmethod
    def opened(cls, path: Path, of: str = "") -> Folder:
        """Make the folder if it is missing, and delete the temporary files of killed processes in it."""
        path.mkdir(parents=True, exist_ok=True)
        for left in path.glob("*.tmp-*"):
            left.unlink(missing_ok=True)
        return cls(path, of)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.unit"

    def _is_whole(self, name: str) -> bool:
        """Check the hash once, and again if the file has changed; a missing file is not whole."""
        if not (path := self._file(name)).is_file():
            return False
        stat = path.stat()
        return _is_whole(self, name, (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


@lru_cache(maxsize=2**16)
def _is_whole(folder: Folder, name: str, stamp: tuple[int, ...]) -> bool:
    with folder._file(name).open("rb") as file:
        size = max(0, stamp[1] - _CHECKSUM_BYTES)
        return _checksum(file, folder.of, name, size) == file.read()


def _checksum(file: BinaryIO, of: str, name: str, size: int) -> bytes:
    """Hash the first `size` bytes, and leave the file position after them."""
    hasher = sha256(f"{of}\0{name}\0".encode())
    while block := file.read(min(size, 2**20)):
        hasher.update(block)
        size -= len(block)
    return hasher.digest()


@dataclass(eq=False)
class MemoryStore:
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


Store = Folder | MemoryStore
_Job = TypeVar("_Job")
RECALL_FLOOR = 0.95
"""Default fraction of the true lists that an approximate search must find."""

Progress = Callable[[int, int], None]
"""Called with the number of finished units and the total."""


@dataclass(frozen=True)
class Unit(Generic[_Job]):
    """`run(job, store)` makes the tables `outputs`; they are identical on every run and machine."""

    outputs: tuple[str, ...]
    run: Callable[[_Job, Store], Sequence[pa.Table]]

    def do(self, job: _Job, store: Store) -> None:
        """Write the outputs unless the store has all of them."""
        if all(store.has(name) for name in self.outputs):
            return
        for name, table in zip(self.outputs, self.run(job, store), strict=True):
            store.write(name, table)


def unit_name(kind: str, start: int, stop: int) -> str:
    """Name a table of the rows from `start` to before `stop`; names sort as rows do.

    The lists of a direction (`lists_table`) have the kind "i2t" or "t2i".
    """
    return f"{kind}-{start:09d}-{stop:09d}"


Steps = Sequence[Sequence[Unit[_Job]]]
"""The units of a step depend on earlier steps, but not on each other."""

Runner = Callable[[Steps[_Job], _Job, Store, Progress], None]


def run_in_process(steps: Steps[_Job], job: _Job, store: Store, progress: Progress) -> None:
    """Run the units one after another, each with all threads."""
    total, done = sum(map(len, steps)), 0
    for units in steps:
        for unit in units:
            unit.do(job, store)
            done += 1
            progress(done, total)


def run_in_order(
    units: Sequence[Unit[_Job]], job: _Job, store: Store, run: Runner[_Job], take: Callable[[int, pa.Table], None]
) -> None:
    """Run units of one table each, and call `take` with each number and table, in order; the store then drops it.

    A table is taken as soon as all before it were taken. If `take` fails, the next run makes the table again.
    """
    waiting = deque(enumerate(units))

    def take_next() -> None:
        number, unit = waiting.popleft()
        (name,) = unit.outputs
        try:
            take(number, store.read(name))
        finally:
            store.drop(name)

    def take_ready(*_: int) -> None:
        while waiting and store.has(waiting[0][1].outputs[0]):
            take_next()

    take_ready()
    if missing := [unit for _, unit in waiting if not store.has(unit.outputs[0])]:
        run([missing], job, store, take_ready)
    while waiting:  # a shared folder may show files of other nodes late
        take_next()


def exact(store: Store, direction: Direction) -> Mapping[str, Any]:
    return {"guarantee": "exact"}


def list_bytes(problem: Problem) -> float:
    """Return the bytes of all lists as they are written."""
    sizes = (problem.size(direction) for direction in problem.directions)
    return float(sum(size.anchors * (8 * size.h + 12) for size in sizes))


@dataclass(frozen=True)
class Backend:
    """A search backend: it reads and writes only tables, so it runs in memory, in a folder or on a cluster."""

    name: str
    about: str
    plan: Callable[[Problem], Steps[Problem]]
    guarantee: Callable[[Store, Direction], Mapping[str, Any]] = exact
    """Return the guarantee of a direction's lists, once all units are done."""
    costs: Callable[[Problem], Mapping[str, float]] | None = None
    """Floating-point operations of each step by name, in order; None if unknown."""
    work_bytes: Callable[[Problem], float] = list_bytes
    """Bytes that the units write during the search, not counted in `problem.memory`."""
    widened: Callable[[Problem, Store, Sequence[Direction]], Backend | None] = lambda *_: None
    """Return a backend that searches more widely where recall fell short, or None."""

    @property
    def is_exact(self) -> bool:
        return self.guarantee is exact
