"""Images and captions in tables (CSV, JSON lines, Parquet), data sets, Karpathy's or COCO's JSON, or files of texts."""

from __future__ import annotations

import csv
import io
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from aoq.pipeline.columns import find_separator, parse_json_lines, transpose
from aoq.pipeline.config.dataset import Source
from aoq.pipeline.data.files import read_lines, read_pairing
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.sources.images import DatasetImages, ParquetImages
from aoq.pipeline.prepare.sources.records import (
    IMAGE_FIELDS,
    OUR_SPLITS,
    SPLIT,
    Records,
    column_values,
    concatenate_splits,
    image_root,
    record_columns,
    splits_of_files,
)
from aoq.pipeline.prepare.sources.shards import IMAGE_SUFFIXES
from aoq.pipeline.reading import checked, read_json, read_utf8, reading

logger = logging.getLogger(__name__)

TEXTS = {".csv": "CSV", ".tsv": "TSV", ".txt": "text"}
SUFFIXES = {**TEXTS, ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".parquet": "Parquet"}
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet", "captions.csv", "captions.tsv")
SAVED = ("dataset_dict.json", "state.json")
COCO_NAME = re.compile(r"captions_(\D+?)\d*\.json")
FLICKR_LINE = r"^(?P<image>.+)#\d+\t(?P<caption>.*)$"
"""A line of Flickr8k's and Flickr30K's `*.token.txt`: the file of an image, the caption's number, the caption."""
MAPPING = "id_mapping.json"
"""Maps ids to files of images."""


def list_table(path: Path, source: Source) -> Records | None:
    """List the images that a table names, below the folder of images, or that it holds; a folder may have the table."""
    table = next((path / name for name in METADATA if (path / name).is_file()), path)
    suffix = table.suffix.lower()
    if suffix not in SUFFIXES or table.is_dir():
        return None
    kind, root = f"a {SUFFIXES[suffix]} table", image_root(source, table.parent)
    if suffix == ".parquet":
        return _list_parquet(kind, [table], source, root)
    if suffix == ".txt":
        lines = [line for line in read_lines(table, may_be_empty=True) if line.strip()]
        captions = pc.extract_regex(pa.array(lines, pa.string()), FLICKR_LINE)
        if not captions.null_count:
            return "Flickr's captions", {name: (captions.field(name),) for name in ("image", "caption")}, root
    with reading(table, kind):
        if suffix in TEXTS:
            return kind, _read_csv(table, source.skip_broken), root
        return kind, record_columns(parse_json_lines(table), source), root


def list_parquet_folder(folder: Path, source: Source) -> Records | None:
    """List files as the hub names them: `train-00000-of-00002.parquet`."""
    paths = sorted(folder.glob("*.parquet")) or sorted((folder / "data").glob("*.parquet"))
    kind = "a folder of Parquet files"
    return _list_parquet(kind, paths, source, image_root(source, folder)) if paths else None


def _list_parquet(kind: str, paths: Sequence[Path], source: Source, root: Path) -> Records:
    """List Parquet files of one schema; images in them stay there."""
    parts = []
    for path in paths:
        with reading(path, "a Parquet table"):
            schema = pq.read_schema(path)
            _require_own_names(schema.names)
            held = [field.name for field in schema if _holds_images(field.type)]
            names = [name for name in schema.names if name not in held]
            parts.append(pq.ParquetFile(path, page_checksum_verification=True).read(names))
    named = source.image_column or next((name for name in IMAGE_FIELDS if name in held), None)
    columns = concatenate_splits(parts, splits_of_files(paths))
    if named is not None and named in held:
        return kind, columns, ParquetImages([str(path) for path in paths], named, str(root))
    return kind, columns, root


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return "bytes" in kind.names
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _require_own_names(columns: Sequence[str]) -> None:
    if len({*columns}) < len(columns):
        raise ValueError(f"two columns have the same name; they are {', '.join(columns)}")


def _read_csv(path: Path, skip_broken: bool) -> dict[str, list[str]]:
    """Read all columns as texts: an id 007 is not 7. Rows of another length are refused, or skipped."""
    text = read_utf8(path)
    first = re.split(r"[\r\n]", text, maxsplit=1)[0]
    header, *rows = _csv_rows(text, find_separator(first))
    header = [name.strip() for name in header]  # Flickr30K's results.csv has spaces after its bars
    _require_own_names(header)
    if wrong := [row for row in rows if len(row) != len(header)]:
        place = 1 + rows.index(wrong[0])
        about = f"row {place} has {len(wrong[0])} values, but the header names {len(header)} columns"
        if not skip_broken:
            raise ValueError(f"{about}; repair it, or leave such rows out (--skip-broken)")
        logger.warning("%s: %d rows are left out, the first: %s", path, len(wrong), about)
        rows = [row for row in rows if len(row) == len(header)]
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}


def _csv_rows(text: str, separator: str) -> list[list[str]]:
    plain = _parse_csv(text, delimiter=separator, quoting=csv.QUOTE_NONE)
    are_lines_rows = len({*map(len, plain)}) == 1
    try:
        quoted = _parse_csv(text, delimiter=separator, strict=True)
    except ValueError as error:
        if are_lines_rows and '\\"' not in text:
            return plain
        raise ValueError(f"{error}; a quotation mark inside a quoted value is written twice") from None
    # Quotation marks belong to the text if each line is a whole row without them and quoting would join lines.
    joins = any("\n" in value or "\r" in value for row in quoted for value in row)
    return plain if joins and are_lines_rows and '"' not in "".join(plain[0]) else quoted


def _parse_csv(text: str, **dialect: Any) -> list[list[str]]:
    reader = csv.reader(io.StringIO(text, newline=""), **dialect)
    try:
        return [row for row in reader if row] or [[]]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None


def list_saved(folder: Path, source: Source) -> Records | None:
    file = next((folder / name for name in SAVED if (folder / name).is_file()), None)
    if file is None:
        return None
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    with reading(file, "part of a data set that save_to_disk wrote"):
        saved = library.load_from_disk(str(folder))
    return list_dataset(saved if isinstance(saved, dict) else {"all": saved}, source)


def list_dataset(splits: dict[str, Any], source: Source) -> Records:
    """List all splits of a data set one after another."""
    library = import_extra("datasets", "datasets", "reading a Hugging Face data set")
    whole = library.concatenate_datasets(list(splits.values())).with_format(None)
    kinds = whole.features
    are_images = [name for name, kind in kinds.items() if isinstance(kind, library.Image)]
    for name in are_images:
        whole = whole.cast_column(name, library.Image(decode=False))
    held = [field.name for field in whole.features.arrow_schema if _holds_images(field.type)]
    others = [name for name in whole.column_names if name not in held]
    parts = [part.select_columns(others).with_format("arrow")[:] for part in splits.values()]
    columns = concatenate_splits(parts, [*splits] if len(splits) > 1 else None)
    for name in {*columns} & {*kinds}:
        if isinstance(kinds[name], library.ClassLabel):
            columns[name] = [
                None if value is None else kinds[name].int2str(value) for value in column_values(columns, name)
            ]
    kind, root = "a Hugging Face data set", image_root(source, Path())
    named = source.image_column or next((name for name in (*IMAGE_FIELDS, *held) if name in held), None)
    if named is not None and named in held:
        return kind, columns, DatasetImages(whole, named, str(root))
    if source.images is None:
        raise ValueError("the data set names image files and does not hold them; say where they are: --images FOLDER.")
    return kind, columns, root


def list_json(path: Path, source: Source) -> Records | None:
    """List the images of the file, or of the folder of COCO's files."""
    folders = path, path / "annotations"
    if cocos := sorted(file for folder in folders for file in folder.glob("*.json") if COCO_NAME.fullmatch(file.name)):
        return _list_coco(cocos, image_root(source, path))
    if path.suffix.lower() != ".json":
        return None
    content: Any = read_json(path, object, remedy="write it again")
    root = image_root(source, path.parent)
    if isinstance(content, dict) and "annotations" in content:
        return _list_coco([path], root)
    with reading(path, "a JSON list of records, Karpathy's file of images with sentences, or COCO's captions"):
        is_karpathys = isinstance(content, dict) and "images" in content
        records = checked(content["images"] if is_karpathys else content, list[dict[str, Any]])
    return "Karpathy's JSON" if is_karpathys else "a JSON list", record_columns(records, source), root


def _list_coco(paths: list[Path], root: Path) -> Records:
    """List one split per file, named after it; images lie in a folder of that name, `train2017`, or all in one."""
    rows: list[dict[str, Any]] = []
    splits = {path: named[1] for path in paths if (named := COCO_NAME.fullmatch(path.name))}
    for path in paths:
        content: Any = read_json(path, dict[str, Any], remedy="take a file of COCO's captions")
        folder = path.stem.removeprefix("captions_")
        inside = f"{folder}/" if (root / folder).is_dir() else ""
        split = {SPLIT: splits[path]} if len(set(splits.values())) > 1 else {}
        with reading(path, "COCO's captions: images with id and file_name, annotations with image_id"):
            names = {image["id"]: f"{inside}{image['file_name']}" for image in content["images"]}
            for one in content["annotations"]:
                if one["image_id"] not in names:
                    raise ValueError(f"a caption belongs to image {one['image_id']}, which is not listed")
                rows.append({**one, "file_name": names[one["image_id"]], **split})
            without = names.keys() - {one["image_id"] for one in content["annotations"]}
            rows += ({"file_name": names[image], **split} for image in sorted(without))
    return "COCO's captions", transpose(rows), root


def list_sidecars(folder: Path, source: Source) -> Records | None:
    """List images that have a text of the same name beside them, with a caption per line."""
    images = [path for path in sorted(folder.rglob("*")) if path.suffix.lower()[1:] in IMAGE_SUFFIXES]
    if not any(path.with_suffix(".txt").is_file() for path in images):
        return None
    rows: dict[str, list[Any]] = {"image": [], "caption": []}
    for path in images:
        rows["image"].append(str(path.relative_to(folder)))
        text = path.with_suffix(".txt")
        rows["caption"].append(read_lines(text, may_be_empty=True) if text.is_file() else [])
    folders = [path.relative_to(folder).parts[0] for path in images]
    if len({*folders}) > 1 and all(name.lower() in OUR_SPLITS for name in folders):
        rows[SPLIT] = folders
    return "a folder of images with texts beside them", rows, image_root(source, folder)


def list_id_files(folder: Path, source: Source) -> Records | None:
    """List equally many captions for every id, or an id per caption, as VSE∞ and LAPS do, or by our `_pairs.npy`."""
    named = (path.name.removesuffix("_ids.txt") for path in sorted(folder.glob("?*_ids.txt")))
    splits = [split for split in named if (folder / f"{split}_caps.txt").is_file()]
    if not splits:
        return None
    mapping = read_json(folder / MAPPING, dict[str, str]) if (folder / MAPPING).is_file() else None
    rows: dict[str, list[str]] = {"image": [], "caption": [], SPLIT: []}
    for split in splits:
        path = folder / f"{split}_ids.txt"
        ids, captions = read_lines(path), read_lines(folder / f"{split}_caps.txt", may_be_empty=True)
        times, rest = divmod(len(captions), len(ids))
        if (pairing := folder / f"{split}_pairs.npy").is_file():
            image_of = read_pairing(pairing, len(captions)).tolist()
            if (last := max(image_of)) >= len(ids):
                raise ValueError(f"{pairing} names image {last}, but {path} has {len(ids)} ids; copy both again.")
            ids, times = [ids[image] for image in image_of], 1
        elif rest or not times:
            raise ValueError(
                f"{path}: {len(ids)} ids for {len(captions)} captions; give each equally many, or one id per caption."
            )
        if mapping is not None and (missing := [name for name in ids if name not in mapping]):
            raise ValueError(f"{path}: {MAPPING} does not have id {missing[0]!r}; add it.")
        names = [name if mapping is None else mapping[name] for name in ids for _ in range(times)]
        for name, values in zip(rows, (names, captions, [split] * len(captions)), strict=True):
            rows[name] += values
    images = next((folder / name for name in ("images", "thumbs") if (folder / name).is_dir()), folder)
    return "a folder of ids and captions", rows, image_root(source, images)
