"""webdataset's tar archives: files of one name are one sample, an image with its caption in `.txt` or `.json`."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from aoq.pipeline.prepare.sources.layout import CAPTIONS, SPLIT, Columns, read_rows, split_of_file
from aoq.pipeline.prepare.sources.listing import FileParts, Listing
from aoq.pipeline.reading import parse_json, reading

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
MOST_TEXT = 1 << 24
SCHEMA = pa.schema({"__key__": pa.string(), "captions": pa.list_(pa.string()), SPLIT: pa.string()})


class Sample(NamedTuple):
    key: str
    start: int
    size: int
    name: str
    """Where its image is in the archive, and what it is called there."""
    captions: list[str]


def find_shards(source: Path) -> list[Path]:
    return sorted(source.glob("*.tar")) if source.is_dir() else [source] if source.suffix == ".tar" else []


def list_shards(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List the samples of all shards in order; a sample without a caption or an image is left out."""
    shards = find_shards(source)
    samples = [(number, sample) for number, shard in enumerate(shards) for sample in _samples(shard)]
    if not samples:
        raise ValueError(f"{source} has no image with a caption of the same name in .txt or .json.")
    content = {
        "__key__": [sample.key for _, sample in samples],
        "captions": [sample.captions for _, sample in samples],
        SPLIT: [split_of_file(shards[number]) for number, _ in samples],
    }
    table = pa.table(content, schema=SCHEMA)
    if table[SPLIT].null_count or len(table[SPLIT].unique()) == 1:
        table = table.drop_columns([SPLIT])
    file_of, starts, sizes = np.array([(number, sample.start, sample.size) for number, sample in samples]).T.copy()
    held = FileParts([str(path) for path in shards], file_of, starts, sizes, [sample.name for _, sample in samples])
    return read_rows(f"{len(shards)} webdataset shards", table, Columns(id="__key__"), held)


def _samples(shard: Path) -> Iterator[Sample]:
    """Group files, which follow each other by sample."""
    with reading(shard, "an uncompressed tar archive of whole samples"), tarfile.open(shard, "r:") as archive:
        key, files = "", dict[str, tarfile.TarInfo]()
        for member in archive:
            if not member.isfile():
                continue
            folder, _, name = member.name.rpartition("/")
            stem, _, kind = name.partition(".")
            if f"{folder}/{stem}" != key:
                yield from _finish(archive, key, files)
                key, files = f"{folder}/{stem}", {}
            files[kind.lower()] = member
        yield from _finish(archive, key, files)


def _finish(archive: tarfile.TarFile, key: str, files: dict[str, tarfile.TarInfo]) -> Iterator[Sample]:
    image = next((files[kind] for kind in IMAGE_SUFFIXES if kind in files), None)
    captions = _captions(archive, files)
    if image is not None and captions:
        yield Sample(key.lstrip("/"), image.offset_data, image.size, image.name, captions)


def _captions(archive: tarfile.TarFile, files: dict[str, tarfile.TarInfo]) -> list[str]:
    if "txt" in files:
        return [_text(archive, files["txt"])]
    if "json" not in files:
        return []
    fields = parse_json(_text(archive, files["json"]), dict[str, Any])
    value: Any = next((fields[name] for name in CAPTIONS if name in fields), [])
    return [text for text in ([value] if isinstance(value, str) else value) if isinstance(text, str)]


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if member.size > MOST_TEXT:
        raise ValueError(f"{member.name} has {member.size:,} bytes of text")
    file = archive.extractfile(member)
    assert file is not None  # a regular file
    return file.read().decode()
