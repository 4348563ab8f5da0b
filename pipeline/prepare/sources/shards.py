"""webdataset's tar archives: files of one name are one sample, an image with its caption in `.txt` or `.json`."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from aoq.pipeline.prepare.sources.images import TarMembers
from aoq.pipeline.prepare.sources.records import CAPTION_FIELDS, Fields, Records, concatenate_splits, split_of_file
from aoq.pipeline.reading import parse_json, reading

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
MOST_TEXT = 1 << 24
SAMPLE_ROWS = pa.schema({"__key__": pa.string(), "captions": pa.list_(pa.string())})


def find_shards(source: Path) -> list[Path]:
    return sorted(source.glob("*.tar")) if source.is_dir() else [source] if source.suffix == ".tar" else []


def list_shards(source: Path, images: Path | None, fields: Fields) -> Records:
    """List the samples of all shards in order; a sample without a caption or an image is left out."""
    shards = find_shards(source)
    parts, splits, members = [], [], []
    for number, shard in enumerate(shards):
        if samples := [*_samples(shard)]:
            rows = [{"__key__": key, "captions": captions} for key, _, captions in samples]
            parts.append(pa.Table.from_pylist(rows, SAMPLE_ROWS))
            splits.append(split_of_file(shard))
            members += [(number, image.offset_data, image.size, image.name) for _, image, _ in samples]
    if not parts:
        raise ValueError(f"{source} has no image with a caption of the same name in .txt or .json.")
    held = TarMembers([str(path) for path in shards], members)
    return Records(f"{len(shards)} webdataset shards", concatenate_splits(parts, splits), held, Fields(id="__key__"))


def _samples(shard: Path) -> Iterator[tuple[str, tarfile.TarInfo, list[str]]]:
    """Key, image and captions of each sample, whose files follow each other."""
    with reading(shard, "an uncompressed tar archive of whole samples"), tarfile.open(shard, "r:") as archive:
        members = ((*_key_and_suffix(member.name), member) for member in archive if member.isfile())
        for key, group in groupby(members, lambda named: named[0]):
            files = {suffix: member for _, suffix, member in group}
            image = next((files[suffix] for suffix in IMAGE_SUFFIXES if suffix in files), None)
            captions = _captions(archive, files)
            if image is not None and captions:
                yield key.lstrip("/"), image, captions


def _key_and_suffix(name: str) -> tuple[str, str]:
    folder, _, file = name.rpartition("/")
    stem, _, suffix = file.partition(".")
    return f"{folder}/{stem}", suffix.lower()


def _captions(archive: tarfile.TarFile, files: dict[str, tarfile.TarInfo]) -> list[str]:
    if "txt" in files:
        return [_text(archive, files["txt"])]
    if "json" not in files:
        return []
    record = parse_json(_text(archive, files["json"]), dict[str, Any])
    value: Any = next((record[name] for name in CAPTION_FIELDS if name in record), [])
    return [text for text in ([value] if isinstance(value, str) else value) if isinstance(text, str)]


def _text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if member.size > MOST_TEXT:
        raise ValueError(f"{member.name} has {member.size:,} bytes of text")
    file = archive.extractfile(member)
    assert file is not None  # a regular file
    return file.read().decode()
