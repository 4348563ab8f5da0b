"""The files of a table's images, and columns of them that Hugging Face `datasets` decodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from aoq.pipeline.reading import read_file

ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp", ".tiff", ".webp")
"""Endings by which sentence-transformers takes the path of a file for an image."""
SIGNATURES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"BM", b"II*\0", b"MM\0*")
_KINDS = "JPEG, PNG, GIF, BMP, TIFF or WebP"
PICTURE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
"""Type in which `datasets` stores an image: its file's content, or its path."""
_MOST_BYTES = 64_000_000
LARGEST = 1_000_000_000


def find_pictures(root: Path, ids: Sequence[str]) -> list[str]:
    """Find the absolute path of each image's file: ROOT/ID, or ROOT/ID with the ending of an image.

    Raises:
        ValueError: if an image has no file below `root`; the first is named.
    """
    if not root.is_dir():
        raise ValueError(f"{root} is no folder; give --image-root the one in which the image ids are names of files.")
    base = os.path.abspath(root)
    if base.encode(errors="replace").decode() != base:
        raise ValueError(f"{root} has a name that is not UTF-8, which no trainer could read; rename the folder.")
    files = [_find(base, name) for name in ids]
    if None in files:
        first = ids[files.index(None)]
        raise ValueError(
            f"{files.count(None)} of {len(ids)} images have no file below {root}, the first is {first!r}; --image-root "
            f"needs the folder where the id of an image names its file, with or without an ending ({ENDINGS[0]}, …)."
        )
    return [path for path in files if path is not None]


def _find(base: str, name: str) -> str | None:
    """Search below `base` alone: ids are data, and could be any path."""
    path = os.path.normpath(os.path.join(base, name))
    if not path.startswith(os.path.join(base, "")) or "\0" in name:
        return None
    endings = ("", *ENDINGS, *map(str.upper, ENDINGS))
    return next((path + ending for ending in endings if os.path.isfile(path + ending)), None)


def require_pictures(files: Sequence[str]) -> None:
    """Refuse files other than images that trainers can read."""
    for path in files:
        try:
            start, size = read_file(path, size=12), os.path.getsize(path)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"{path} cannot be read ({reason}).") from None
        if not (start.startswith(SIGNATURES) or (start[:4] == b"RIFF" and start[8:] == b"WEBP")):
            raise ValueError(f"{path} is no picture ({'it is empty' if not start else f'no {_KINDS}'}); replace it.")
        if size > LARGEST:
            raise ValueError(f"{path} has {size / 1e9:.1f} GB; make it smaller.")


def require_endings(files: Sequence[str]) -> None:
    """Refuse a file that sentence-transformers would take for text."""
    for path in files:
        if not path.lower().endswith(ENDINGS):
            raise ValueError(
                f"{path} does not end like an image ({', '.join(ENDINGS)}), so sentence-transformers would take its "
                "path for text; rename the files, or choose the format ids."
            )


def picture_column(files: Sequence[str], *, packed: bool) -> pa.Array:
    """Make a column of the files' content if `packed`, else of their paths."""
    if not packed:
        return pa.array([{"bytes": None, "path": path} for path in files], PICTURE)
    return pa.array([{"bytes": Path(path).read_bytes(), "path": os.path.basename(path)} for path in files], PICTURE)


def slices(files: Sequence[str], rows: int, most: int) -> Iterator[slice]:
    """Slice `rows` rows into parts of up to `most` rows; a part's files, if there are any, have up to 64 MB."""
    start = size = 0
    for row in range(rows):
        size += os.path.getsize(files[row]) if files else 0
        if row + 1 - start == most or size >= _MOST_BYTES or row + 1 == rows:
            yield slice(start, row + 1)
            start, size = row + 1, 0
