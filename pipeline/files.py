"""Files: hashes, atomic writes, and temporary folders.

An output is written in `.OUTPUT.work` beside it until it is complete. The folder holds its own lock and is removed when
the command ends. The next run of the same output takes over what a killed command left; `aoq gc --unfinished` lists it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

UNSURE_NS = 100_000_000
"""A file modified so recently may change again without a new timestamp."""
LOCK = "aoq.lock"
FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of network file systems that lock no files."""
_REPLACED = ".replaced"
"""Suffix of the old output while the new one takes its place."""
_known_hashes: dict[Path, tuple[tuple[int, ...], str]] = {}


def canonical_json(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(content: Any) -> str:
    """Return sixteen hex digits that name a JSON value, whatever the order of its keys."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """Hash a file's bytes; refuse devices and pipes, which may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is not a regular file; copy its content to one.")
    with path.open("rb") as file:
        hasher = hashlib.sha256()
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def known_sha256(path: Path) -> str:
    """Hash a file once per process, and again if it was replaced or written since."""
    status = path.stat()
    stamp = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    before, sha256 = _known_hashes.get(path, (None, ""))
    if before != stamp:
        now, sha256 = time.time_ns(), file_sha256(path)
        if now - status.st_ctime_ns > UNSURE_NS:
            _known_hashes[path] = stamp, sha256
    return sha256


@contextmanager
def scratch_beside(
    output: Path, *, wait: bool = False, keep: Callable[[Path], bool] = lambda _: False
) -> Iterator[Path]:
    """Yield a folder locked for this process, empty except for what `keep` accepts to continue from.

    Raises:
        ValueError: if another process is making `output`, unless `wait` is true.
        PermissionError: if nothing may be written next to `output`.
    """
    folder = scratch_folder(output)
    if os.fsencode(output).decode(errors="replace") != str(output):
        raise ValueError(f"{output} has a name that is not UTF-8, which Arrow cannot write; choose another.")
    with writing_in(folder.parent):
        if not (parent := folder.parent).is_dir():
            reason = "is not a folder" if parent.exists() else f"does not exist; make it: mkdir -p '{parent}'"
            raise ValueError(f"{parent} {reason}.")
    try:
        held = _take(folder, wait)
    except Timeout:
        raise ValueError(f"another process is making {output}; wait for it, or choose another name.") from None
    is_made = False
    with held:
        try:
            _restore(folder)
            if not keep(folder):
                _empty(folder)
            yield folder
            is_made = True
        finally:
            if is_made or not keep(folder):
                _remove(folder)


def scratch_folder(output: Path) -> Path:
    place = output.absolute()
    return place.with_name(f".{place.name}.work")


def replace_output(new: Path, output: Path) -> None:
    """Replace the output with a file or folder from its temporary folder; a kill in between loses neither."""
    if output.exists():
        os.replace(output, new.with_name(f"{output.name}{_REPLACED}"))
    os.replace(new, output)


@contextmanager
def writing_in(folder: Path) -> Iterator[None]:
    """Explain a file system's refusal to write in one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_LOCKS:
            raise OSError(
                f"the file system of {folder} does not support locks; mount it with locks, or use another."
            ) from None
        if error.errno not in FORBIDDEN:
            raise
        raise PermissionError(f"{folder} is not writable ({(error.strerror or '').lower()}).") from None


def scratch_in(*folders: Path) -> list[Path]:
    """List the temporary folders of commands that are running or were killed."""
    return sorted({lock.parent for folder in folders for lock in folder.glob(f".*.work/{LOCK}")})


def reclaim(folder: Path) -> bool:
    """Delete a temporary folder, unless a command is using it."""
    try:
        held = _take(folder, wait=False)
    except Timeout:
        return False
    with held:
        _remove(folder)
    return True


def _take(folder: Path, wait: bool) -> AbstractContextManager[object]:
    lock = FileLock(folder / LOCK, timeout=-1 if wait else 0)
    while True:
        try:
            _make_scratch(folder)
            with writing_in(folder):
                held = lock.acquire()
        except (FileNotFoundError, FileExistsError):  # filelock raises the latter, as it makes the folder too
            if not folder.parent.is_dir():
                raise
            continue  # its holder ended just now and removed it
        if (folder / LOCK).exists():
            return held
        lock.release()


def _make_scratch(folder: Path) -> None:
    try:
        with writing_in(folder.parent):
            folder.mkdir()
    except FileNotFoundError:
        if not folder.parent.is_dir():
            raise
        raise PermissionError(f"{folder.parent} is not writable (cannot create a folder).") from None  # such as /proc
    except FileExistsError:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():  # a link could make us empty any folder
            raise ValueError(f"{folder} exists, but is not your own temporary folder; remove it.") from None


def _restore(folder: Path) -> None:
    """Restore the old output if a run was killed before it published the new one; else remove it."""
    name = folder.name.removeprefix(".").removesuffix(".work")
    output, new, old = folder.with_name(name), folder / name, folder / f"{name}{_REPLACED}"
    if old.exists() and new.exists() and not output.exists():
        os.replace(old, output)
    if old.exists():
        shutil.rmtree(old)


def _empty(folder: Path) -> None:
    _restore(folder)
    for path in folder.iterdir():
        if path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _remove(folder: Path) -> None:
    _empty(folder)
    # The lock goes last: a process that finds none starts over, maybe before the folder is gone.
    (folder / LOCK).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], object]) -> None:
    """Write a file, or let a function write it, by one rename: a crash leaves the old content or the whole new one."""
    with scratch_beside(path, wait=True) as folder:
        temporary = folder / path.name
        with temporary.open("wb") as file:
            content(file) if callable(content) else file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
