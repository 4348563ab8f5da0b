"""Annotations of a split beyond its pairs: optional files for evaluations (docs/formats/dataset.md), and COCO's.

Queries missing from a relevance file are left out. A generated world has its own right pairs and classes.
"""

from __future__ import annotations

import logging
import re
import warnings
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float64, Int64, Shaped
from pydantic import Field
from typing_extensions import TypedDict

from aoq.pipeline.columns import open_columns
from aoq.pipeline.data.demo import is_true, labels_path, read_scenes
from aoq.pipeline.data.demo_scenes import COUNT, OBJECT, OBJECTS, UNLABELLED
from aoq.pipeline.data.files import is_binary, misfit
from aoq.pipeline.data.folder import Split
from aoq.pipeline.extras import import_extra
from aoq.pipeline.files import write_atomically
from aoq.pipeline.reading import open_array, read_json, reading

logger = logging.getLogger(__name__)

COCO_CATEGORIES, COCO_CAPTIONS = 90, 5
ANNOTATION_COLUMNS = {
    "relevance": pa.schema({"caption_id": pa.int64(), "image_id": pa.int64(), "direction": pa.string()}),
    "judgements": pa.schema({"image_id": pa.int64(), "caption_id": pa.int64(), "score": pa.float64()}),
}
RightPairs = tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]]
"""Rows of images and of captions."""


class ScoredPairs(NamedTuple):
    """Pairs with human scores, in any order; a pair may occur more than once."""

    images: Int64[np.ndarray, " pairs"]
    captions: Int64[np.ndarray, " pairs"]
    scores: Float64[np.ndarray, " pairs"]


class Annotations(NamedTuple):
    """Annotations of a split; relevance and judgements by file name."""

    relevance: dict[str, dict[str, RightPairs]]
    """Right pairs, by direction."""
    classes: Bool[np.ndarray, "images classes"] | None
    """Classes that each image shows; None if unknown."""
    judgements: dict[str, ScoredPairs]


def annotation_files(folder: Path, split: str) -> dict[str, Path]:
    """Return the existing annotation files by kind: "relevance", "relevance_eccv", "classes", "judgements"."""
    tables: dict[str, Path] = {}
    for path in sorted(folder.glob(f"{split}_*"), reverse=True):
        name = path.stem.removeprefix(f"{split}_")
        if name.split("_")[0] in ANNOTATION_COLUMNS and path.suffix in (".parquet", ".csv"):
            if name in tables:
                raise ValueError(f"{tables[name]} and {path.name} hold the same annotation; remove one of them.")
            tables[name] = path
    classes = folder / f"{split}_classes.npy"
    return dict(sorted(tables.items())) | ({"classes": classes} if classes.exists() else {})


def read_annotations(folder: Path, split: Split) -> Annotations:
    """Read the annotation files, or, in a generated world without them, derive its true pairs and classes."""
    files = {name: read_annotation(path, split) for name, path in annotation_files(folder, split.name).items()}
    relevance, judgements = (
        {name: files[name] for name in files if name.split("_")[0] == kind} for kind in ANNOTATION_COLUMNS
    )
    classes = files.get("classes")
    if labels_path(folder, split.name).exists():
        scenes = read_scenes(folder, split.name)
        if not relevance:
            pairs = np.nonzero(np.stack([is_true(text, scenes) for text in split.captions], axis=1))
            relevance["relevance"] = {"i2t": pairs, "t2i": pairs}
        if classes is None:
            things = np.where(scenes.groups[:, :, COUNT] > 0, scenes.groups[:, :, OBJECT], UNLABELLED)
            classes = (things[..., None] == np.arange(len(OBJECTS))).any(axis=1)
    return Annotations(relevance, classes, judgements)


def read_annotation(path: Path, split: Split) -> Any:
    """Read one of `annotation_files`; refuse anything that does not fit the split."""
    kind = path.stem.removeprefix(f"{split.name}_").split("_")[0]
    return {"relevance": _read_relevance, "classes": _read_classes, "judgements": _read_judgements}[kind](path, split)


def _read_relevance(path: Path, split: Split) -> dict[str, RightPairs]:
    rows = _read_rows(path, split, "relevance")
    if not len(rows["image_id"]):
        raise ValueError(f"{path} holds no pair; fill it, or remove it.")
    direction = rows.get("direction")
    if direction is not None and (other := sorted(set(direction.tolist()) - {"i2t", "t2i"})):
        raise ValueError(f"{path}: direction is {other[0]!r}; write i2t or t2i, or leave out the column for both.")
    chosen = {name: slice(None) if direction is None else direction == name for name in ("i2t", "t2i")}
    pairs = {name: (rows["image_id"][mask], rows["caption_id"][mask]) for name, mask in chosen.items()}
    return {name: own for name, own in pairs.items() if len(own[0])}


def _read_classes(path: Path, split: Split) -> Bool[np.ndarray, "images classes"]:
    classes = open_array(path)
    if classes.ndim != 2 or len(classes) != split.image_count or not is_binary(classes):
        needs = f"needs a row of 0 and 1 (or booleans) per image, shape ({split.image_count}, classes)"
        raise misfit(path, classes, needs, "Write it again, or remove it.")
    if not classes.any():
        raise ValueError(f"{path}: no image shows any class; fill it, or remove it.")
    return np.asarray(classes, dtype=np.bool_)


def _read_judgements(path: Path, split: Split) -> ScoredPairs:
    rows = _read_rows(path, split, "judgements")
    if len(bad := np.flatnonzero(~np.isfinite(rows["score"]))):
        raise ValueError(f"{path}: row {bad[0]} (from 0) has no finite score.")
    if len(np.unique(rows["score"])) < 2:
        raise ValueError(f"{path}: every pair has the same score, so nothing can be compared; remove the file.")
    return ScoredPairs(rows["image_id"], rows["caption_id"], rows["score"])


def _read_rows(path: Path, split: Split, kind: str) -> dict[str, Shaped[np.ndarray, " rows"]]:
    """Read a .parquet or .csv file's columns, `direction` only if it is there; ids are rows of the split."""
    columns = ANNOTATION_COLUMNS[kind]
    with reading(path, f"a table with the columns {', '.join(columns.names)}"):
        types, read = open_columns(path)
        table = read(pa.schema([one for one in columns if one.name in types or one.name != "direction"]), ())
    arrays = {name: table[name].to_numpy() for name in table.column_names}
    for name, size in (("caption_id", split.caption_count), ("image_id", split.image_count)):
        rows = arrays[name]
        if len(rows) and not 0 <= rows.min() <= rows.max() < size:
            raise ValueError(f"{path} names {name} {rows.min()} to {rows.max()}, but the split has 0 to {size - 1}.")
    return arrays


class Instance(TypedDict):
    """One object in one image, with the keys of COCO's files."""

    image_id: int
    category_id: Annotated[int, Field(ge=1, le=COCO_CATEGORIES)]


class Instances(TypedDict):
    """The parts of `instances_val2014.json` that are used."""

    annotations: list[Instance]


def write_coco_relevance(folder: Path, split: Split) -> list[Path]:
    """Write `{split}_relevance_eccv.parquet` and `_cxc.parquet`: the right answers by ECCV Caption and CxC.

    An image's captions are matched by position: COCO's five are in its order. Two of ECCV Caption's 22,550 answers to
    images are captions beyond those five, which no split has.
    """
    known, image_rows = _eccv_caption(), {image: row for row, image in enumerate(coco_image_ids(split))}
    places = product(_test_images(), range(COCO_CAPTIONS))
    caption_rows = {
        caption: int(split.captions_of[image_rows[image]][place])
        for (image, place), caption in zip(places, known.coco_ids.tolist(), strict=True)
        if image in image_rows
    }
    written = []
    for name in ("eccv", "cxc"):
        right = getattr(known, f"{name}_gts")
        pairs = [(caption, image, "i2t") for image, captions in right["i2t"].items() for caption in captions]
        pairs += [(caption, image, "t2i") for caption, images in right["t2i"].items() for image in images]
        there = [(caption_rows[c], image_rows[i], way) for c, i, way in pairs if c in caption_rows and i in image_rows]
        if not there:
            raise ValueError(f"split {split.name!r} has no image of {name}; take COCO's test split.")
        table = pa.table([*zip(*there, strict=True)], names=ANNOTATION_COLUMNS["relevance"].names)
        written.append(folder / f"{split.name}_relevance_{name}.parquet")
        write_atomically(written[-1], partial(pq.write_table, table))
    return written


def write_coco_classes(folder: Path, split: Split, instances: Path) -> Path:
    """Write `{split}_classes.npy` for PMRP: the categories of each image's instances in `instances_val2014.json`."""
    annotations = read_json(instances, Instances, remedy="take COCO's instances_val2014.json")["annotations"]
    rows = {image: row for row, image in enumerate(coco_image_ids(split))}
    classes = np.zeros((split.image_count, COCO_CATEGORIES), dtype=np.bool_)
    for one in annotations:
        if one["image_id"] in rows:
            classes[rows[one["image_id"]], one["category_id"] - 1] = True
    if not classes.any():
        raise ValueError(f"{instances} has no instance in any image of {split.name!r}; take that of val2014.")
    path = folder / f"{split.name}_classes.npy"
    write_atomically(path, lambda file: np.save(file, classes))
    return path


def coco_image_ids(split: Split) -> list[int]:
    """Return COCO's id of every image: the number that its id ends with, or its place among all 5,000 test images."""
    test = _test_images()
    if not (np.bincount(split.image_of) == COCO_CAPTIONS).all():
        raise ValueError(f"split {split.name!r} has images with other than COCO's {COCO_CAPTIONS} captions.")
    numbers = [int(number[1]) for image in split.ids if (number := re.search(r"(\d+)(\.\w+)?$", image))]
    if len(numbers) == split.image_count and {*numbers} <= {*test}:
        return numbers
    if split.image_count == len(test) and split.name.startswith("test"):
        logger.info("%s: its ids are not COCO's; its images are assumed to be in COCO's order", split.name)
        return test
    raise ValueError(
        f"split {split.name!r} has {split.image_count} images with ids like {split.ids[0]!r}: neither COCO's ids of "
        f"test images nor all {len(test)} of them; write their COCO ids to {split.name}_ids.txt."
    )


def _test_images() -> list[int]:
    known = _eccv_caption()
    return [int(known.coco_gts["t2i"][caption][0]) for caption in known.coco_ids[::COCO_CAPTIONS].tolist()]


@cache
def _eccv_caption() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends ujson
        return import_extra("eccv_caption", "eccv", "COCO's test set").Metrics()
