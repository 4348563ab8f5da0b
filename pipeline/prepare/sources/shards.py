"""webdataset's tar archives: files of one name are one sample, an image with its caption in `.txt` or `.json`."""

from __future__ import annotations

import logging
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.prepare.sources import records
from aoq.pipeline.prepare.sources.images import TarMembers
from aoq.pipeline.reading import parse_json, reading

logger = logging.getLogger(__name__)

IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff")
MOST_CAPTION_BYTES = 1 << 24
KEY = "__key__"


def list_shards(path: Path, source: Source) -> records.Records | None:
    """List the samples of all shards in order; samples without a picture are left out, and counted in the log."""
    shards = sorted(path.glob("*.tar")) if path.is_dir() else [path] if path.suffix == ".tar" else []
    if not shards:
        return None
    if source.images or source.image_column:
        raise ValueError("shards hold their images; leave out --images and --image-column.")
    splits = records.splits_of_files(shards)
    rows, members, broken, ignored = [], [], [], Counter[str]()
    for number, shard in enumerate(shards):
        with reading(shard, "an uncompressed tar archive"), tarfile.open(shard, "r:") as archive:
            for key, files in _tar_samples(archive, ignored).items():
                try:
                    suffix = next((suffix for suffix in IMAGE_SUFFIXES if suffix in files), None)
                    image = None if suffix is None else _one(files[suffix])
                    record = _record(archive, files, source)
                except ValueError as error:
                    broken.append(f"{shard}:{error}")
                    continue
                if image is None:
                    ignored["samples have no picture"] += 1
                    continue
                rows.append({**record, KEY: key, **({records.SPLIT: splits[number]} if splits else {})})
                members.append((number, image.offset_data, image.size, image.name))
    for what, count in ignored.items():
        logger.warning("%d %s and are left out", count, what)
    if broken and not source.skip_broken:
        shown = "; ".join(broken[: records.SHOWN_BROKEN])
        raise ValueError(
            f"{len(broken)} records cannot be read: {shown}; repair them, or leave them out (--skip-broken)."
        )
    for sentence in broken:
        logger.warning("%s; the record is left out", sentence)
    if not rows:
        raise ValueError(f"{path} has no image with a caption of the same name in .txt or .json.")
    if len({record[KEY] for record in rows}) < len(rows):
        for record, member in zip(rows, members, strict=True):
            record[KEY] = f"{shards[member[0]].stem}/{record[KEY]}"
    images = TarMembers([str(shard) for shard in shards], members)
    return f"{len(shards)} webdataset shards", records.record_columns(rows, source), images


def _tar_samples(archive: tarfile.TarFile, ignored: Counter[str]) -> dict[str, dict[str, list[tarfile.TarInfo]]]:
    """Return the files of each sample by their suffixes, wherever they lie in the archive."""
    samples: dict[str, dict[str, list[tarfile.TarInfo]]] = {}
    for member in archive:
        folder, _, file = member.name.rpartition("/")
        stem, _, suffix = file.partition(".")
        if file.startswith("._"):
            ignored["files (._*) hold macOS's notes about other files"] += 1
        elif member.isfile():
            sample = samples.setdefault(f"{folder}/{stem}".lstrip("/"), {})
            sample.setdefault(suffix.lower(), []).append(member)
        elif not member.isdir():
            ignored["members are links or devices"] += 1
    return samples


def _one(files: list[tarfile.TarInfo]) -> tarfile.TarInfo:
    if len(files) > 1:
        raise ValueError(f"{files[0].name} occurs {len(files)} times")
    if files[0].issparse():
        raise ValueError(f"{files[0].name} is a sparse file")
    return files[0]


def _record(archive: tarfile.TarFile, files: dict[str, list[tarfile.TarInfo]], source: Source) -> dict[str, Any]:
    """Read a sample's record: the lines of `.txt` are its captions, else the record of `.json` has it."""
    chosen = (*source.caption_columns, source.id_column or "", source.split_column or "")
    named = {name.partition(".")[0] for name in (*records.CAPTION_FIELDS, records.SPLIT, *chosen)}
    record = {}
    if "json" in files:
        member = _one(files["json"])
        try:
            content = parse_json(_member_text(archive, member), dict[str, Any])
        except ValueError as error:
            raise ValueError(f"{member.name} is not a JSON record ({error})") from None
        record = {name: value for name, value in content.items() if name in named or records.NUMBERED.fullmatch(name)}
    if "txt" in files and not source.caption_columns:
        others = {name: value for name, value in record.items() if name not in records.CAPTION_FIELDS}
        record = {records.CAPTION_FIELDS[0]: _member_text(archive, _one(files["txt"])).split("\n"), **others}
    return record


def _member_text(archive: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    if member.size > MOST_CAPTION_BYTES:
        raise ValueError(f"{member.name} has {member.size:,} bytes of text")
    file = archive.extractfile(member)
    assert file is not None  # a regular file
    try:
        return file.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{member.name} is not a text in UTF-8") from None
