"""Data sets of Hugging Face `datasets`: saved by save_to_disk, of the hub, or a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from aoq.pipeline.extras import import_extra
from aoq.pipeline.hub import load_splits
from aoq.pipeline.prepare.sources.layout import IMAGES, Columns, read_rows
from aoq.pipeline.prepare.sources.listing import Images, Listing, bytes_of
from aoq.pipeline.prepare.sources.shards import split_named
from aoq.pipeline.prepare.sources.tables import list_parquet
from aoq.pipeline.reading import reading

SAVED = ("dataset_dict.json", "state.json")


@dataclass(frozen=True)
class DatasetImages(Images):
    """Images of a data set's column, undecoded."""

    dataset: Any
    column: str
    files: Sequence[str] = ()

    def read(self, row: int) -> bytes:
        return bytes_of(self.dataset[row][self.column])

    def describe(self, row: int) -> str:
        return f"image {row}"

    def identity(self) -> str:
        return str(self.dataset._fingerprint)


def is_saved(source: Path) -> bool:
    return any((source / name).is_file() for name in SAVED)


def list_saved(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List what save_to_disk wrote."""
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    name = next(name for name in SAVED if (source / name).is_file())
    with reading(source / name, "part of a data set that save_to_disk wrote"):
        found = library.load_from_disk(str(source))
    return _list(library, found, images, columns)


def list_hub(given: str, images: Path | None, columns: Columns) -> Listing:
    """List a data set of the hub, downloading it if necessary."""
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    return _list(library, load_splits(given), images, columns)


def _list(library: Any, found: Any, images: Path | None, columns: Columns) -> Listing:
    """List all splits one after another; the name of a single split is dropped."""
    parts = dict(found) if isinstance(found, dict) else {"all": found}
    whole = library.concatenate_datasets(list(parts.values())).with_format(None)
    kinds = whole.features
    held = [name for name, kind in kinds.items() if isinstance(kind, library.Image) or _holds_bytes(kind)]
    for name in held:
        if isinstance(kinds[name], library.Image):
            whole = whole.cast_column(name, library.Image(decode=False))
    others = [name for name in whole.column_names if name not in held]
    rows = whole.select_columns(others).with_format("arrow")[:]
    if len(parts) > 1 and "split" not in others:
        names = np.repeat(list(parts), [len(part) for part in parts.values()])
        rows = rows.append_column("split", pa.array(names.tolist(), pa.string()))
    kind = "a Hugging Face data set"
    named = columns.image or next((name for name in (*IMAGES, *held) if name in held), None)
    if named in held and named is not None:
        return read_rows(kind, rows, columns, DatasetImages(whole, named))
    if images is None:
        raise ValueError("the data set names image files and does not hold them; say where they are: --images FOLDER.")
    return read_rows(kind, rows, columns, images.absolute())


def _holds_bytes(kind: Any) -> bool:
    return getattr(kind, "dtype", None) in ("binary", "large_binary") or (isinstance(kind, dict) and "bytes" in kind)


def is_parquet_folder(source: Path) -> bool:
    return bool(_parquet_files(source))


def _parquet_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))


def list_parquet_folder(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List files as the hub names them: `train-00000-of-00002.parquet`."""
    paths = _parquet_files(source)
    splits = [split_named(path) for path in paths]
    named = [split for split in splits if split is not None]
    told = named if len(named) == len(paths) and len(set(named)) > 1 else None
    return list_parquet("a folder of Parquet files", paths, columns, images or source, told)
