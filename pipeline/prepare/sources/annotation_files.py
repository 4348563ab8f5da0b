"""Texts beside a folder of images: Karpathy's `dataset_*.json`, COCO's `captions_*.json`, lists of records, and
`{split}_ids.txt` with `{split}_caps.txt`, as VSE∞, LAPS and our own dataset folders have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
from typing_extensions import NotRequired, TypedDict

from aoq.pipeline.data.files import read_lines
from aoq.pipeline.prepare.sources.layout import Columns, read_rows
from aoq.pipeline.prepare.sources.listing import Listing
from aoq.pipeline.prepare.sources.tables import naming
from aoq.pipeline.reading import checked, read_json, reading

COCO = re.compile(r"captions_(\D+?)\d*\.json")
KARPATHY = pa.schema({"filepath": pa.string(), "captions": pa.list_(pa.string()), "split": pa.string()})
MAPPING = "id_mapping.json"
"""Maps ids to files of images."""


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
    return source.suffix.lower() == ".json" or bool(_coco_files(source))


def list_json(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List the images of the file, or of the folder of COCO's files."""
    if source.is_dir():
        return _list_coco(_coco_files(source), images or source)
    content, root = read_json(source, object, remedy="write it again"), images or source.parent
    if isinstance(content, dict) and "annotations" in content:
        return _list_coco([source], root, content)
    if isinstance(content, dict):
        with reading(source, "a file of images with sentences, as Karpathy's, or of COCO's captions"):
            kind, rows = "Karpathy's JSON", _karpathy_rows(checked(content, Karpathy))
    else:
        with reading(source, "a JSON list of records"):
            kind, rows = "a JSON list", pa.Table.from_pylist(checked(content, list[dict[str, Any]]))
    with naming(source):
        return read_rows(kind, rows, columns, root.absolute())


def _karpathy_rows(content: Karpathy) -> pa.Table:
    rows = [
        {
            "filepath": "/".join(filter(None, (image.get("filepath"), image["filename"]))),
            "captions": [sentence["raw"] for sentence in image["sentences"]],
            "split": image["split"],
        }
        for image in content["images"]
    ]
    return pa.Table.from_pylist(rows, KARPATHY)


def _coco_files(folder: Path) -> list[Path]:
    """Find the caption files of a COCO folder, or of `annotations` in it."""
    paths = [path for place in (folder, folder / "annotations") for path in place.glob("captions_*.json")]
    return sorted(path for path in paths if COCO.fullmatch(path.name))


def _list_coco(paths: list[Path], root: Path, content: dict[str, Any] | None = None) -> Listing:
    """List one split per file, named after it; images lie in a folder of that name, `train2017`, or all in one."""
    rows: dict[str, list[Any]] = {"file_name": [], "caption": [], "split": []}
    for path in paths:
        with reading(path, "a file of COCO's captions"):
            coco = checked(content or read_json(path, Coco), Coco)
            folder = path.stem.removeprefix("captions_")
            inside = f"{folder}/" if (root / folder).is_dir() else ""
            names = {image["id"]: inside + image["file_name"] for image in coco["images"]}
            for caption in coco["annotations"]:
                if caption["image_id"] not in names:
                    raise ValueError(f"a caption belongs to image {caption['image_id']}, which is not listed")
                rows["file_name"].append(names[caption["image_id"]])
                rows["caption"].append(caption["caption"])
        named = COCO.fullmatch(path.name)
        rows["split"] += [named[1] if named else "train"] * len(coco["annotations"])
    if len(paths) == 1:
        del rows["split"]
    table = pa.table({name: pa.array(values, pa.string()) for name, values in rows.items()})
    return read_rows("COCO's captions", table, Columns(), root.absolute())


def id_file_splits(folder: Path) -> list[str]:
    """Return the splits of a folder that have both an ids file and a captions file."""
    splits = (path.name.removesuffix("_ids.txt") for path in sorted(folder.glob("?*_ids.txt")))
    return [split for split in splits if (folder / f"{split}_caps.txt").is_file()]


def list_id_files(source: Path, images: Path | None, columns: Columns) -> Listing:
    """List equally many captions for every id, in order, or an id per caption."""
    mapping = read_json(source / MAPPING, dict[str, str]) if (source / MAPPING).is_file() else None
    parts = []
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
        parts.append(pa.table({"image": names, "caption": captions, "split": [split] * len(captions)}))
    root = images or next((source / name for name in ("images", "thumbs") if (source / name).is_dir()), source)
    return read_rows("a folder of ids and captions", pa.concat_tables(parts), Columns(), root.absolute())
