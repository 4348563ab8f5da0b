"""Recognise the kind of a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aoq.pipeline.hub import is_of_hub
from aoq.pipeline.prepare.sources import annotation_files, hugging_face, shards, tables
from aoq.pipeline.prepare.sources.layout import Columns
from aoq.pipeline.prepare.sources.listing import Listing


class Kind(NamedTuple):
    """`find` looks at names only, for anything of this kind; `read` gets the folder where image paths start, if any."""

    find: Callable[[Path], object]
    read: Callable[[Path, Path | None, Columns], Listing]


KINDS = {
    "a .csv, .tsv, .jsonl or .parquet table": Kind(tables.find_table, tables.list_table),
    "Karpathy's or COCO's .json": Kind(annotation_files.is_json, annotation_files.list_json),
    "webdataset's .tar shards": Kind(shards.find_shards, shards.list_shards),
    "a saved Hugging Face data set": Kind(hugging_face.saved_file, hugging_face.list_saved),
    "a folder of Parquet files": Kind(tables.find_parquet_files, tables.list_parquet_folder),
    "a folder with train_ids.txt and train_caps.txt": Kind(
        annotation_files.id_file_splits, annotation_files.list_id_files
    ),
}
"""Kinds in the order in which they are tried."""


def open_source(source: str, images: Path | None, columns: Columns) -> Listing:
    """Open a source and list its content.

    Raises:
        FileNotFoundError: if it does not exist.
        ValueError: for an unknown kind of source, or one with unexpected content.
    """
    path = Path(source).expanduser()
    if images is not None and not images.is_dir():
        raise FileNotFoundError(f"--images: there is no folder {images}.")
    if is_of_hub(source):
        return hugging_face.list_hub(source, images, columns)
    if not path.exists():
        raise FileNotFoundError(f"{source} does not exist; a data set of the Hugging Face hub is named hf:OWNER/NAME.")
    for kind in KINDS.values():
        if kind.find(path):
            return kind.read(path, images, columns)
    raise ValueError(f"{source} holds no images with captions in a known layout; known are {'; '.join(KINDS)}.")
