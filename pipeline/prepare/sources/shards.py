"""webdataset's tar archives: files of one name are one sample, an image with its caption in `.txt` or `.json`."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from aoq.pipeline.prepare.sources.layout import CAPTIONS, Columns, read_rows
from aoq.pipeline.prepare.sources.listing import FileParts, Listing
from aoq.pipeline.reading import parse_json, reading

IMAGES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
SPLIT = re.compile(r"(train|training|val|valid|validation|dev|test)(?=[^A-Za-z]|$)")
"""Names of splits at the start of file names."""
MOST_TEXT = 1 << 24


def split_named(path: Path) -> str | None:
    """Name of the split that a file's name starts with."""
    named = SPLIT.match(path.name)
    return named[1] if named else None


def shards_of(source: Path) -> list[Path]:
    return sorted(source.glob("*.tar")) if source.is_dir() else [source] if source.suffix == ".tar" else []


def is_shards(source: Path) -> bool:
    return bool(shards_of(source))


class _Sample(NamedTuple):
    key: str
    place: tuple[int, int, str]
    """Start, size and name of its image."""
    captions: list[str]


def list_shards(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List the samples of all shards in order; a sample without a caption or an image is left out."""
    rows: dict[str, list[Any]] = {"__key__": [], "captions": [], "split": []}
    places: list[tuple[int, int, int, str]] = []
    shards = shards_of(source)
    for number, shard in enumerate(shards):
        for sample in _samples(shard):
            rows["__key__"].append(sample.key)
            rows["captions"].append(sample.captions)
            rows["split"].append(split_named(shard))
            places.append((number, *sample.place))
    if not places:
        raise ValueError(f"{source} has no image with a caption of the same name in .txt or .json.")
    table = pa.table(rows, schema=SCHEMA)
    if table["split"].null_count or len(table["split"].unique()) == 1:
        table = table.drop_columns(["split"])
    file_of, starts, sizes = (np.array([place[i] for place in places]) for i in range(3))
    held = FileParts([str(path) for path in shards], file_of, starts, sizes, [place[3] for place in places])
    return read_rows(f"{len(shards)} webdataset shards", table, Columns(id="__key__"), held)


SCHEMA = pa.schema({"__key__": pa.string(), "captions": pa.list_(pa.string()), "split": pa.string()})


def _samples(shard: Path) -> Iterator[_Sample]:
    """Group files, which follow each other by sample."""
    with reading(shard, "an uncompressed tar archive of whole samples"), tarfile.open(shard, "r:") as archive:
        key, found = "", dict[str, tarfile.TarInfo]()
        for member in archive:
            if not member.isfile():
                continue
            folder, _, name = member.name.rpartition("/")
            stem, _, kind = name.partition(".")
            if f"{folder}/{stem}" != key:
                yield from _whole(archive, key, found)
                key, found = f"{folder}/{stem}", {}
            found[kind.lower()] = member
        yield from _whole(archive, key, found)


def _whole(archive: tarfile.TarFile, key: str, found: dict[str, tarfile.TarInfo]) -> Iterator[_Sample]:
    image = next((found[kind] for kind in IMAGES if kind in found), None)
    captions = _captions(archive, found)
    if image is not None and captions:
        yield _Sample(key.lstrip("/"), (image.offset_data, image.size, image.name), captions)


def _captions(archive: tarfile.TarFile, found: dict[str, tarfile.TarInfo]) -> list[str]:
    if "txt" in found:
        return [_text(archive, found["txt"])]
    if "json" not in found:
        return []
    fields = parse_json(_text(archive, found["json"]), dict[str, Any])
    value: Any = next((fields[name] for name in CAPTIONS if name in fields), [])
    return [text for text in ([value] if isinstance(value, str) else value) if isinstance(text, str)]


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if member.size > MOST_TEXT:
        raise ValueError(f"{member.name} has {member.size:,} bytes of text")
    file = archive.extractfile(member)
    assert file is not None  # a regular file
    return file.read().decode()
