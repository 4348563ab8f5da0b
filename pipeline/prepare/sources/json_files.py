"""Texts beside a folder of images: Karpathy's `dataset_*.json`, COCO's `captions_*.json`, lists of records, and
`{split}_ids.txt` with `{split}_caps.txt`, as VSE∞, LAPS and our own dataset folders have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from aoq.pipeline.columns import transpose
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.prepare.sources.records import SPLIT, Fields, Records, record_columns
from aoq.pipeline.reading import checked, read_json, reading

COCO_NAME = re.compile(r"captions_(\D+?)\d*\.json")
MAPPING = "id_mapping.json"
"""Maps ids to files of images."""


class CocoImage(TypedDict):
    id: int
    file_name: str


class CocoCaption(TypedDict):
    image_id: int
    caption: str


class Coco(TypedDict):
    images: list[CocoImage]
    annotations: list[CocoCaption]


def is_json(source: Path) -> bool:
    return source.suffix.lower() == ".json" or bool(_coco_files(source))


def list_json(source: Path, images: Path | None, fields: Fields) -> Records:
    """List the images of the file, or of the folder of COCO's files."""
    if source.is_dir():
        return _list_coco(_coco_files(source), images or source, fields)
    content: Any = read_json(source, object, remedy="write it again")
    root = images or source.parent
    if isinstance(content, dict) and "annotations" in content:
        return _list_coco([source], root, fields)
    with reading(source, "a JSON list of records, Karpathy's file of images with sentences, or COCO's captions"):
        is_karpathys = isinstance(content, dict) and "images" in content
        records = checked(content["images"] if is_karpathys else content, list[dict[str, Any]])
    kind = "Karpathy's JSON" if is_karpathys else "a JSON list"
    return Records(kind, record_columns(records, fields), root.absolute(), fields)


def _coco_files(folder: Path) -> list[Path]:
    paths = [path for place in (folder, folder / "annotations") for path in place.glob("captions_*.json")]
    return sorted(path for path in paths if COCO_NAME.fullmatch(path.name))


def _list_coco(paths: list[Path], root: Path, fields: Fields) -> Records:
    """List one split per file, named after it; images lie in a folder of that name, `train2017`, or all in one."""
    rows: list[dict[str, Any]] = []
    splits = {path: named[1] for path in paths if (named := COCO_NAME.fullmatch(path.name))}
    for path in paths:
        content = read_json(path, Coco, remedy="take a file of COCO's captions")
        folder = path.stem.removeprefix("captions_")
        inside = f"{folder}/" if (root / folder).is_dir() else ""
        names = {image["id"]: inside + image["file_name"] for image in content["images"]}
        split = {SPLIT: splits[path]} if len(set(splits.values())) > 1 else {}
        for caption in content["annotations"]:
            if caption["image_id"] not in names:
                raise ValueError(f"{path}: a caption belongs to image {caption['image_id']}, which is not listed.")
            rows.append({**caption, "file_name": names[caption["image_id"]], **split})
    return Records("COCO's captions", transpose(rows), root.absolute(), fields)


def id_file_splits(folder: Path) -> list[str]:
    """Return the splits of a folder that have both an ids file and a captions file."""
    splits = (path.name.removesuffix("_ids.txt") for path in sorted(folder.glob("?*_ids.txt")))
    return [split for split in splits if (folder / f"{split}_caps.txt").is_file()]


def list_id_files(source: Path, images: Path | None, fields: Fields) -> Records:
    """List equally many captions for every id, in order, or an id per caption."""
    mapping = read_json(source / MAPPING, dict[str, str]) if (source / MAPPING).is_file() else None
    rows: dict[str, list[str]] = {"image": [], "caption": [], SPLIT: []}
    for split in id_file_splits(source):
        path = source / f"{split}_ids.txt"
        ids, captions = read_lines(path), read_lines(source / f"{split}_caps.txt")
        times, rest = divmod(len(captions), len(ids))
        if rest or not times:
            raise ValueError(
                f"{path}: {len(ids)} ids for {len(captions)} captions; give each id equally many, or an id a caption."
            )
        if mapping is not None and (missing := [name for name in ids if name not in mapping]):
            raise ValueError(f"{path}: {MAPPING} does not have id {missing[0]!r}; add it.")
        names = [name if mapping is None else mapping[name] for name in ids for _ in range(times)]
        for name, values in zip(rows, (names, captions, [split] * len(captions)), strict=True):
            rows[name] += values
    root = images or next((source / name for name in ("images", "thumbs") if (source / name).is_dir()), source)
    return Records("a folder of ids and captions", rows, root.absolute(), fields)
