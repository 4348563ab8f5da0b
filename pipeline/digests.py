"""Hashes of JSON values and of files; a file's hash is cached until the file changes."""

from __future__ import annotations

import hashlib
import json
import stat
import time
from pathlib import Path
from typing import Any

UNSURE_NS = 100_000_000
"""A file modified so recently may change again without a new timestamp."""

Stamp = tuple[int, int, int, int, int]
_known: dict[Path, tuple[Stamp, str]] = {}


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
    before = _stamp(path)
    stamp, sha256 = _known.get(path, (None, ""))
    if stamp != before:
        now, sha256 = time.time_ns(), file_sha256(path)
        if now - before[-1] > UNSURE_NS:
            _known[path] = before, sha256
    return sha256


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
