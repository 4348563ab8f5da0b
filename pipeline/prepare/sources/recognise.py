"""Recognise the kind of a source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from aoq.pipeline.hub import is_of_hub
from aoq.pipeline.prepare.sources import hugging_face, id_files, json_files, shards, tables
from aoq.pipeline.prepare.sources.layout import Columns
from aoq.pipeline.prepare.sources.listing import Listing


class Kind(NamedTuple):
    """`holds` looks at names alone; `read` gets the folder where image paths start, if the user names one."""

    holds: Callable[[Path], bool]
    read: Callable[[Path, Path | None, Columns], Listing]


KINDS = {
    "a .csv, .tsv, .jsonl or .parquet table": Kind(tables.is_table, tables.list_table),
    "Karpathy's or COCO's .json": Kind(json_files.is_json, json_files.list_json),
    "webdataset's .tar shards": Kind(shards.is_shards, shards.list_shards),
    "a saved Hugging Face data set": Kind(hugging_face.is_saved, hugging_face.list_saved),
    "a folder of Parquet files": Kind(hugging_face.is_parquet_folder, hugging_face.list_parquet_folder),
    "a folder with train_ids.txt and train_caps.txt": Kind(id_files.has_id_files, id_files.list_id_files),
}
"""Kinds in the order in which they are tried."""


def open_source(source: str, images: Path | None, columns: Columns) -> Listing:
    """Open a source and list its content.

    Raises:
        FileNotFoundError: if there is nothing.
        ValueError: for an unknown kind of source, or one that is not what it seems to be.
    """
    path = Path(source).expanduser()
    if images is not None and not images.is_dir():
        raise FileNotFoundError(f"--images: there is no folder {images}.")
    if is_of_hub(source):
        return hugging_face.list_hub(source, images, columns)
    if not path.exists():
        raise FileNotFoundError(f"{source} does not exist; a data set of the Hugging Face hub is named hf:OWNER/NAME.")
    for kind in KINDS.values():
        if kind.holds(path):
            return kind.read(path, images, columns)
    raise ValueError(f"{source} holds no images with captions in a layout that is known: {'; '.join(KINDS)}.")
