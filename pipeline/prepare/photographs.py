"""Photographs of a prepared folder, unchanged since it was prepared."""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.digests import digest
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.images import FORMATS
from aoq.pipeline.prepare.sources.listing import Files, Images, ParquetImages
from aoq.pipeline.reading import reading


@dataclass(frozen=True)
class Photographs:
    """Photographs of a split in order, unchanged since the folder was prepared."""

    images: Images
    sha256: Sequence[str]

    def read(self, row: int) -> bytes:
        """Read the encoded photograph.

        Raises:
            ValueError: if it was changed since, or is gone.
        """
        try:
            content = self.images.read(row)
            if hashlib.sha256(content).hexdigest() != self.sha256[row]:
                raise ValueError("was changed since the folder was prepared")
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.images.describe(row)}: {error}; prepare the folder again.") from None
        return content


def photographs_fingerprint(folder: Path, split: str) -> str:
    """Fingerprint the contents of a split's photographs in order, wherever they lie."""
    return digest(_read_list(folder, split)[1])


def open_photographs(folder: Path, split: str, images: int) -> Photographs:
    """Open the photographs of a split, one for each of its images.

    Raises:
        ValueError: if the folder does not name its photographs, or has another number of them.
    """
    path = folder / f"{split}_images.parquet"
    paths, sha256, is_packed = _read_list(folder, split)
    if len(paths) != images:
        raise ValueError(f"{path} lists {len(paths)} photographs, and the split has {images} images; prepare it again.")
    if is_packed:
        return Photographs(ParquetImages([str(path)], "bytes"), sha256)
    files = [name for name in paths if name is not None]
    if len(files) < len(paths):
        raise ValueError(f"{path} names no file of image {paths.index(None)}; prepare it again with --pack.")
    return Photographs(Files(files), sha256)


def _read_list(folder: Path, split: str) -> tuple[list[str | None], list[str], bool]:
    """Read file and content hash of each photograph, and whether they are packed."""
    path = folder / f"{split}_images.parquet"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {path.name}, which says where its photographs are; `aoq prepare SOURCE FOLDER --pack` "
            "makes such a folder."
        )
    with reading(path, "a list of photographs", "prepare the folder again"), pq.ParquetFile(path) as file:
        table = file.read(["path", "sha256"])
        kinds = {name: table.schema.field(name).type for name in ("path", "sha256")}
        if not {*kinds.values()} <= {pa.string(), pa.large_string(), pa.null()}:
            raise ValueError(f"its columns are {kinds} instead of strings")
        if table["sha256"].null_count:
            raise ValueError("a photograph has no sha256")
        return *(table[name].to_pylist() for name in ("path", "sha256")), "bytes" in file.schema_arrow.names


def photograph_files(folder: Path, split: str, images: int, unpacked: Path | None = None) -> Sequence[str] | None:
    """Return the file of each photograph, if the prepared folder names them.

    With `unpacked`, a folder to make, packed ones are written there, and others are checked against the prepared ones;
    without it, files are not read.
    """
    if not (folder / f"{split}_images.parquet").is_file():
        return None
    photographs = open_photographs(folder, split, images)
    if isinstance(photographs.images, Files):
        if unpacked is not None:
            with ThreadPoolExecutor() as pool:
                deque(pool.map(photographs.read, range(images)), maxlen=0)
        return photographs.images.files
    if unpacked is None:
        return None
    unpacked.mkdir()
    return [str(_written(unpacked / str(row), photographs.read(row))) for row in range(images)]


def _written(path: Path, content: bytes) -> Path:
    """Write the photograph to a file with the suffix of its format."""
    with import_extra("PIL.Image", "prepare", "reading images").open(io.BytesIO(content), formats=FORMATS) as opened:
        path = path.with_suffix(f".{opened.format.lower()}")
    path.write_bytes(content)
    return path
