"""Karpathy's `dataset_*.json`, COCO's `captions_*.json`, and plain lists of records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from aoq.pipeline.prepare.sources.layout import Columns, read_rows
from aoq.pipeline.prepare.sources.listing import Listing
from aoq.pipeline.prepare.sources.tables import naming
from aoq.pipeline.reading import checked, read_json, reading

COCO = re.compile(r"captions_(\D+?)\d*\.json")


class Sentence(TypedDict):
    raw: str


class KarpathyImage(TypedDict):
    filename: str
    split: str
    sentences: list[Sentence]
    filepath: NotRequired[str]


class Karpathy(TypedDict):
    images: list[KarpathyImage]


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
    return source.suffix.lower() == ".json" or bool(coco_files(source))


def coco_files(folder: Path) -> list[Path]:
    """Caption files of a COCO folder, or of `annotations` in it."""
    found = [path for place in (folder, folder / "annotations") for path in place.glob("captions_*.json")]
    return sorted(path for path in found if COCO.fullmatch(path.name))


def list_json(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List the images of the file, or of the folder of COCO's files."""
    if source.is_dir():
        return _list_coco(coco_files(source), images or source)
    content, root = read_json(source, object, remedy="write it again"), images or source.parent
    if isinstance(content, dict) and "annotations" in content:
        return _list_coco([source], root, content)
    if isinstance(content, dict):
        return _list_karpathy(source, content, root, columns)
    with reading(source, "a JSON list of records"):
        rows = pa.Table.from_pylist(checked(content, list[dict[str, Any]]))
    with naming(source):
        return read_rows("a JSON list", rows, columns, root.absolute())


def _list_karpathy(source: Path, content: dict[str, Any], root: Path, columns: Columns) -> Listing:
    with reading(source, "a file of images with sentences, as Karpathy's, or of COCO's captions"):
        images = checked(content, Karpathy)["images"]
    rows = [
        {
            "filepath": "/".join(filter(None, (image.get("filepath"), image["filename"]))),
            "captions": [sentence["raw"] for sentence in image["sentences"]],
            "split": image["split"],
        }
        for image in images
    ]
    with naming(source):
        return read_rows("Karpathy's JSON", pa.Table.from_pylist(rows, KARPATHY), columns, root.absolute())


KARPATHY = pa.schema({"filepath": pa.string(), "captions": pa.list_(pa.string()), "split": pa.string()})


def _list_coco(paths: list[Path], root: Path, content: dict[str, Any] | None = None) -> Listing:
    """List one split per file, named after it; images lie in a folder of that name, `train2017`, or all in one."""
    rows: dict[str, list[Any]] = {"file_name": [], "caption": [], "split": []}
    for path in paths:
        with reading(path, "a file of COCO's captions"):
            found = checked(content or read_json(path, Coco), Coco)
            folder = path.stem.removeprefix("captions_")
            inside = f"{folder}/" if (root / folder).is_dir() else ""
            names = {image["id"]: inside + image["file_name"] for image in found["images"]}
            for caption in found["annotations"]:
                if caption["image_id"] not in names:
                    raise ValueError(f"a caption is of image {caption['image_id']}, which is not listed")
                rows["file_name"].append(names[caption["image_id"]])
                rows["caption"].append(caption["caption"])
        named = COCO.fullmatch(path.name)
        rows["split"] += [named[1] if named else "train"] * len(found["annotations"])
    table = pa.table({name: pa.array(values, pa.string()) for name, values in rows.items()})
    if len(paths) == 1:
        table = table.drop_columns(["split"])
    return read_rows("COCO's captions", table, Columns(), root.absolute())
