"""What is known of a split beyond its pairs: optional files beside it, for evaluations.

    {split}_relevance.parquet    caption_id, image_id [, direction]  all that is right, not the own pairs alone
    {split}_classes.npy          (images, classes) bool              what each image shows
    {split}_judgements.parquet   image_id, caption_id, score         what people said of pairs

Ids are rows of the split. The tables may be .csv as well, and there may be several, `{split}_relevance_eccv.parquet`.
`direction` is i2t or t2i where a pair is an answer to the image or to the caption alone. Queries that a relevance file
does not name are not asked. A generated world knows the first two by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
from jaxtyping import Bool, Float64, Int64, Shaped

from aoq.pipeline.data.demo import SeenScenes, labels_path, read_claim
from aoq.pipeline.data.files import open_array
from aoq.pipeline.data.folder import Split

KINDS = ("relevance", "judgements")
SUFFIXES = (".parquet", ".csv")
RELEVANCE = {"caption_id": pa.int64(), "image_id": pa.int64(), "direction": pa.string()}
JUDGEMENTS = {"image_id": pa.int64(), "caption_id": pa.int64(), "score": pa.float64()}
Pairs = tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]]
"""Images and captions."""


@dataclass(frozen=True)
class Judgements:
    """Pairs with people's scores, in any order; a pair may come again."""

    images: Int64[np.ndarray, " pairs"]
    captions: Int64[np.ndarray, " pairs"]
    scores: Float64[np.ndarray, " pairs"]


def annotation_files(folder: Path, split: str) -> dict[str, Path]:
    """The files that are there, by what they are: "relevance", "relevance_eccv", "classes", "judgements"."""
    found: dict[str, Path] = {}
    for kind in KINDS:
        for suffix in SUFFIXES:
            for path in sorted((*folder.glob(f"{split}_{kind}{suffix}"), *folder.glob(f"{split}_{kind}_*{suffix}"))):
                name = path.stem.removeprefix(f"{split}_")
                if name in found:
                    raise ValueError(f"{found[name]} and {path.name} stand for the same; remove one of them.")
                found[name] = path
    classes = folder / f"{split}_classes.npy"
    return dict(sorted(found.items())) | ({"classes": classes} if classes.is_file() else {})


def read_relevance(folder: Path, split: Split) -> dict[str, dict[str, Pairs]]:
    """The pairs that are right, by the name of the file and by direction; in a generated world, those that are true."""
    found: dict[str, dict[str, Pairs]] = _read_kind(folder, split, "relevance")
    if not found and labels_path(folder, split.name).is_file():
        scenes = SeenScenes.read(folder, split.name)
        images, captions = np.nonzero(np.stack([read_claim(text).holds(scenes) for text in split.captions], axis=1))
        found["relevance"] = {"i2t": (images, captions), "t2i": (images, captions)}
    return found


def read_classes(folder: Path, split: Split) -> Bool[np.ndarray, "images classes"] | None:
    """What each image shows; in a generated world its objects. None where nobody says."""
    if found := _read_kind(folder, split, "classes"):
        return found["classes"]
    if not labels_path(folder, split.name).is_file():
        return None
    groups = SeenScenes.read(folder, split.name).groups
    images, places = np.nonzero(groups[:, :, 3])
    shown = np.zeros((split.image_count, 1 + int(groups[:, :, 0].max())), dtype=np.bool_)
    shown[images, groups[images, places, 0]] = True
    return shown


def read_judgements(folder: Path, split: Split) -> dict[str, Judgements]:
    """What people said, by the name of the file."""
    return _read_kind(folder, split, "judgements")


def _read_kind(folder: Path, split: Split, kind: str) -> dict[str, Any]:
    files = annotation_files(folder, split.name)
    return {name: read_annotation(path, split) for name, path in files.items() if name.split("_")[0] == kind}


def read_annotation(path: Path, split: Split) -> Any:
    """One of `annotation_files`; refuses what does not fit the split."""
    return READERS[path.stem.removeprefix(f"{split.name}_").split("_")[0]](path, split)


def _directions(path: Path, split: Split) -> dict[str, Pairs]:
    sizes = {"caption_id": split.caption_count, "image_id": split.image_count}
    rows = _read_rows(path, RELEVANCE, sizes=sizes, optional="direction")
    if not len(rows["image_id"]):
        raise ValueError(f"{path} holds no pair; fill it, or remove it.")
    said = rows.get("direction")
    if said is not None and (other := sorted(set(said.tolist()) - {"i2t", "t2i"})):
        raise ValueError(f"{path}: direction is {other[0]!r}; write i2t or t2i, or leave out the column for both.")
    chosen = {name: slice(None) if said is None else said == name for name in ("i2t", "t2i")}
    pairs = {name: (rows["image_id"][these], rows["caption_id"][these]) for name, these in chosen.items()}
    return {name: these for name, these in pairs.items() if len(these[0])}


def _classes(path: Path, split: Split) -> Bool[np.ndarray, "images classes"]:
    classes = open_array(path)
    if classes.ndim != 2 or len(classes) != split.image_count or not np.isin(classes, (0, 1)).all():
        raise ValueError(
            f"{path}: needs a row of 0 and 1 (or booleans) an image, shape ({split.image_count}, classes); this array "
            f"has {classes.shape} {classes.dtype}."
        )
    if not classes.any():
        raise ValueError(f"{path}: no image shows any class; fill it, or remove it.")
    return np.asarray(classes, dtype=np.bool_)


def _judgements(path: Path, split: Split) -> Judgements:
    rows = _read_rows(path, JUDGEMENTS, sizes={"image_id": split.image_count, "caption_id": split.caption_count})
    if len(bad := np.flatnonzero(~np.isfinite(rows["score"]))):
        raise ValueError(f"{path}: row {bad[0]} (from 0) has no finite score.")
    if len(np.unique(rows["score"])) < 2:
        raise ValueError(f"{path}: people gave every pair the same score, which says nothing.")
    return Judgements(rows["image_id"], rows["caption_id"], rows["score"])


def _read_rows(
    path: Path, columns: Mapping[str, pa.DataType], *, sizes: Mapping[str, int], optional: str = ""
) -> dict[str, Shaped[np.ndarray, " rows"]]:
    """The columns of a .parquet or .csv file; those in `sizes` are rows of the split, 0 to size - 1.

    A column named `optional` may be missing, and is then missing here.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; give a .csv or .parquet with columns {', '.join(columns)}.")
    try:
        table = pq.read_table(path) if path.suffix == ".parquet" else csv.read_csv(path)
        there = [name for name in columns if name != optional or name in table.column_names]
        if empty := [name for name in there if table[name].null_count]:
            raise ValueError(f"column {empty[0]} is empty in some rows")
        found = {name: table[name].cast(columns[name]).to_numpy() for name in there}
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise ValueError(f"{path}: {error}; it needs columns {', '.join(columns)}, in every row.") from None
    for name, size in sizes.items():
        rows = found[name]
        if len(rows) and not 0 <= rows.min() <= rows.max() < size:
            raise ValueError(f"{path} names {name} {rows.min()} to {rows.max()}, and the split has 0 to {size - 1}.")
    return found


READERS: dict[str, Callable[[Path, Split], Any]] = {
    "relevance": _directions,
    "classes": _classes,
    "judgements": _judgements,
}
