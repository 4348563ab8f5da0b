"""Vectors at an address, such as s3://bucket/images.npy: copied once into a cache folder."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow import fs

from aoq.pipeline.digests import digest, file_sha256, known_sha256
from aoq.pipeline.scratch import scratch_beside, writing_in

OF_ARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
"""Schemes that pyarrow reads without further packages."""


def is_address(given: str) -> bool:
    return "://" in given


def fetch(address: str, cache: Path) -> Path:
    """Copy the file at `address` into `cache`, named after its content, and return the copy; renewed when it changes.

    pyarrow's file systems read it: s3://, gs://, abfs://, hdfs:// and file://, with the credentials each looks for; and
    fsspec's the rest, such as https://, where they are installed.
    """
    system, place, info = _find(address)
    with writing_in(cache):
        cache.mkdir(parents=True, exist_ok=True)
    seen = cache / f"{digest([address, info.size, info.mtime_ns])}.seen"
    with scratch_beside(seen, wait=True) as folder:
        if (found := _whole_copy(seen)) is not None:
            return found
        fetched = folder / "fetched"
        fs.copy_files(place, str(fetched), system, fs.LocalFileSystem())
        copy = cache / f"{file_sha256(fetched)}{PurePosixPath(place).suffix}"
        os.replace(fetched, copy)
        (folder / "seen").write_text(copy.name)
        os.replace(folder / "seen", seen)
    return copy


def _whole_copy(seen: Path) -> Path | None:
    """Return the copy that was made of what was seen, if both are unchanged since."""
    try:
        copy = seen.with_name(seen.read_text())
        return copy if known_sha256(copy) == copy.stem else None
    except (OSError, ValueError):  # no file, or not a file's name
        return None


def fetch_given(given: str, cache: Path) -> str:
    """Replace `ADDRESS::NAME` by the copy's `FILE::NAME`; anything that is not an address stays."""
    address, mark, part = given.partition("::")
    return f"{fetch(address, cache)}{mark}{part}" if is_address(address) else given


def _find(address: str) -> tuple[fs.FileSystem, str, fs.FileInfo]:
    try:
        system, place = _system_of(address)
    except (pa.ArrowInvalid, ValueError, ImportError) as error:
        raise ValueError(
            f"{address} is no address that can be read ({error}); known are s3://, gs://, abfs://, hdfs://, file:/// "
            "and what fsspec finds installed."
        ) from None
    info = system.get_file_info(place)
    if info.type != fs.FileType.File:
        raise FileNotFoundError(f"there is no file at {address}; is the address right, and may you read it?")
    return system, place, info


def _system_of(address: str) -> tuple[fs.FileSystem, str]:
    if address.partition("://")[0] in OF_ARROW:
        return fs.FileSystem.from_uri(address)
    import fsspec  # takes a while, and few need it

    system, place = fsspec.url_to_fs(address)
    return fs.PyFileSystem(fs.FSSpecHandler(system)), place
