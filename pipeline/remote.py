"""Vectors at an address, such as s3://bucket/images.npy: copied once into a cache folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pyarrow as pa
from pyarrow import fs

from aoq.pipeline.digests import digest, file_sha256, known_sha256
from aoq.pipeline.scratch import scratch_beside, writing_in

OF_ARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
"""Schemes that pyarrow reads without further packages; fsspec reads others, such as https."""


def is_address(given: str) -> bool:
    return "://" in given


def fetch(address: str, cache: Path) -> Path:
    """Copy the file at `address` into `cache`, named after its content, and return the copy; renewed when it changes.

    Credentials are those that pyarrow's and fsspec's file systems look for.
    """
    system, place, info = _find(address)
    with writing_in(cache):
        cache.mkdir(parents=True, exist_ok=True)
    seen = cache / f"{digest([address, info.size, info.mtime_ns])}.seen"
    with scratch_beside(seen, wait=True) as folder:
        with suppress(OSError, ValueError):  # no file, or not a file's name
            if known_sha256(copy := seen.with_name(seen.read_text())) == copy.stem:
                return copy
        fetched = folder / "fetched"
        fs.copy_files(place, str(fetched), system, fs.LocalFileSystem())
        copy = cache / f"{file_sha256(fetched)}{PurePosixPath(place).suffix}"
        os.replace(fetched, copy)
        (folder / "seen").write_text(copy.name)
        os.replace(folder / "seen", seen)
    return copy


def fetch_given(given: str, cache: Path) -> str:
    """Replace `ADDRESS::NAME` by the copy's `FILE::NAME`; anything that is not an address stays."""
    address, mark, part = given.partition("::")
    return f"{fetch(address, cache)}{mark}{part}" if is_address(address) else given


def _find(address: str) -> tuple[fs.FileSystem, str, fs.FileInfo]:
    try:
        if address.partition("://")[0] in OF_ARROW:
            system, place = fs.FileSystem.from_uri(address)
        else:
            import fsspec  # late: it is slow to import, and few need it

            handler, place = fsspec.url_to_fs(address)
            system = fs.PyFileSystem(fs.FSSpecHandler(handler))
    except (pa.ArrowInvalid, ValueError, ImportError) as error:
        raise ValueError(
            f"{address} is no address that can be read ({error}); known are s3://, gs://, abfs://, hdfs://, file:/// "
            "and what fsspec finds installed."
        ) from None
    if (info := system.get_file_info(place)).type != fs.FileType.File:
        raise FileNotFoundError(f"there is no file at {address}; check the address, and that you may read it.")
    return system, place, info
