"""Data sets of Hugging Face `datasets`: saved by save_to_disk, or of the hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from aoq.pipeline.extras import import_extra
from aoq.pipeline.hub import load_splits
from aoq.pipeline.prepare.sources.layout import IMAGES, SPLIT, Columns, read_rows
from aoq.pipeline.prepare.sources.listing import Images, Listing, image_bytes
from aoq.pipeline.reading import reading

SAVED = ("dataset_dict.json", "state.json")


@dataclass(frozen=True)
class DatasetImages(Images):
    """Images of a data set's column, undecoded."""

    dataset: Any
    column: str
    files: Sequence[str] = ()

    def read(self, row: int) -> bytes:
        return image_bytes(self.dataset[row][self.column])

    def describe(self, row: int) -> str:
        return f"image {row}"

    def identity(self) -> str:
        return str(self.dataset._fingerprint)


def saved_file(source: Path) -> Path | None:
    """Return the file by which a saved data set is recognised."""
    return next((source / name for name in SAVED if (source / name).is_file()), None)


def list_saved(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List what save_to_disk wrote."""
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    with reading(saved_file(source) or source, "part of a data set that save_to_disk wrote"):
        saved = library.load_from_disk(str(source))
    return _list(saved if isinstance(saved, dict) else {"all": saved}, images, columns)


def list_hub(name: str, images: Path | None, columns: Columns) -> Listing:
    """List a data set of the hub, downloading it if necessary."""
    return _list(load_splits(name), images, columns)


def _list(parts: dict[str, Any], images: Path | None, columns: Columns) -> Listing:
    """List all splits one after another; the name of a single split is dropped."""
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    whole = library.concatenate_datasets(list(parts.values())).with_format(None)
    kinds = whole.features
    held = [name for name, kind in kinds.items() if isinstance(kind, library.Image) or _holds_bytes(kind)]
    for name in held:
        if isinstance(kinds[name], library.Image):
            whole = whole.cast_column(name, library.Image(decode=False))
    others = [name for name in whole.column_names if name not in held]
    rows = whole.select_columns(others).with_format("arrow")[:]
    if len(parts) > 1 and SPLIT not in others:
        names = np.repeat(list(parts), [len(part) for part in parts.values()])
        rows = rows.append_column(SPLIT, pa.array(names.tolist(), pa.string()))
    kind = "a Hugging Face data set"
    named = columns.image or next((name for name in (*IMAGES, *held) if name in held), None)
    if named is not None and named in held:
        return read_rows(kind, rows, columns, DatasetImages(whole, named))
    if images is None:
        raise ValueError("the data set names image files and does not hold them; say where they are: --images FOLDER.")
    return read_rows(kind, rows, columns, images.absolute())


def _holds_bytes(kind: Any) -> bool:
    return getattr(kind, "dtype", None) in ("binary", "large_binary") or (isinstance(kind, dict) and "bytes" in kind)
