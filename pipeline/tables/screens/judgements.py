"""Files of judged pairs: pairs that people know to match, and probabilities that an MLLM or people give."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Float64, Int64

from aoq.pipeline.columns import fitted
from aoq.pipeline.reading import parse_json, reading
from aoq.pipeline.tables.files import PAIRS
from aoq.pipeline.tables.pairs import READERS, Pairs, pair_keys

ROWS = pa.schema([(name, pa.int64()) for name in PAIRS.names])
REMEDY = f"it needs rows, whole numbers, in the columns {' and '.join(PAIRS.names)}"


@dataclass(frozen=True)
class Judgements:
    """The judged pairs, each once, by image, then by caption; all other pairs are unjudged."""

    pairs: Pairs
    probabilities: Float32[np.ndarray, " pairs"]
    """Probability that the image and the caption match."""

    def of(self, keys: Int64[np.ndarray, " entries"], caption_count: int) -> Float32[np.ndarray, " entries"]:
        """Probability of each of these pairs (`pair_keys`); NaN if it was not judged."""
        ordered = pair_keys(self.pairs[:, 0], self.pairs[:, 1], caption_count)
        if not len(ordered):
            return np.full(keys.shape, np.nan, dtype=np.float32)
        places = np.minimum(np.searchsorted(ordered, keys), len(ordered) - 1)
        return np.where(ordered[places] == keys, self.probabilities[places], np.float32(np.nan))


def read_matches(path: Path, images: int, captions: int) -> Pairs:
    """Read pairs that people judged to match, as in CxC and ECCV Caption, by image, each once.

    They are rows of the data, in the columns caption_id and image_id, or in json {caption: [image, ...]}.
    """
    if path.suffix == ".json":
        with reading(path, "pairs known to match", f"{REMEDY}, or json {{caption: [image, ...]}}"):
            images_of = parse_json(path.read_bytes(), dict[str, list[int]])
            rows = [(int(caption), image) for caption, listed in images_of.items() for image in listed]
            table = pa.table([[pair[side] for pair in rows] for side in range(2)], schema=ROWS)
    else:
        table = _read(path, "pairs known to match", (".parquet", ".csv", ".json"), ROWS)
    image_rows, caption_rows = _rows(str(path), table, images, captions)
    return np.unique(np.stack([image_rows, caption_rows], axis=1).astype(np.int32), axis=0)


def read_judgements(
    source: Path | pa.Table,
    images: int,
    captions: int,
    *,
    grades: tuple[float, float] | None = None,
    one_set: bool = False,
) -> Judgements:
    """Read judgements from a file, or an Arrow table of the same columns; a pair without a value is not judged.

    The columns are caption_id and image_id, rows of the data, and probability; with `grades` (lowest, highest) it is
    grade, p = (grade - lowest) / (highest - lowest). In one set either order is the same pair, and the lower row comes
    first.

    Raises:
        ValueError: for unknown rows, values out of range, or a pair with two values.
    """
    value = "probability" if grades is None else "grade"
    schema = pa.schema([*ROWS, (value, pa.float64())])
    if isinstance(source, Path):
        remedy = (
            ", and numbers in the column probability, or grade with judged_grades; `aoq to-judge` writes such a file"
        )
        name, table = str(source), _read(source, "judgements", READERS, schema, remedy)
    else:
        name, table = "judgements", fitted(source, schema, nullable=[value])
    table = table.filter(table[value].is_valid())
    image_rows, caption_rows = _rows(name, table, images, captions)
    values = table[value].to_numpy()
    if one_set:
        image_rows, caption_rows = np.minimum(image_rows, caption_rows), np.maximum(image_rows, caption_rows)
    lowest, highest = (0.0, 1.0) if grades is None else grades
    if len(outside := np.flatnonzero(~((values >= lowest) & (values <= highest)))):
        first = outside[0]
        raise ValueError(
            f"{name}: image {image_rows[first]} and caption {caption_rows[first]} have {value} {values[first]:g}, and "
            f"it lies between {lowest:g} and {highest:g}; "
            + ("grades of another range need judged_grades." if grades is None else "give the judge's own range.")
        )
    return _each_once(name, image_rows, caption_rows, (values - lowest) / (highest - lowest), captions)


def _read(path: Path, what: str, suffixes: Collection[str], columns: pa.Schema, remedy: str = "") -> pa.Table:
    """Read columns of which all but the rows may have empty values."""
    if path.suffix not in suffixes:
        raise ValueError(f"{path} should hold {what}, in one of {', '.join(suffixes)}.")
    with reading(path, what, REMEDY + remedy):
        _, read = READERS[path.suffix](path)
        return read(columns, columns.names[2:])


def _rows(
    name: str, table: pa.Table, images: int, captions: int
) -> tuple[Int64[np.ndarray, " rows"], Int64[np.ndarray, " rows"]]:
    """Take the rows of images and of captions; each must exist."""
    caption_rows, image_rows = (table[column].to_numpy().astype(np.int64) for column in PAIRS.names)
    for side, rows, count in (("caption", caption_rows, captions), ("image", image_rows, images)):
        if len(outside := np.flatnonzero((rows < 0) | (rows >= count))):
            raise ValueError(
                f"{name}: pair {outside[0]} has {side} {rows[outside[0]]}, and there are {side}s 0 to {count - 1}."
            )
    return image_rows, caption_rows


def _each_once(
    name: str,
    images: Int64[np.ndarray, " rows"],
    captions: Int64[np.ndarray, " rows"],
    probabilities: Float64[np.ndarray, " rows"],
    caption_count: int,
) -> Judgements:
    keys, first, which = np.unique(pair_keys(images, captions, caption_count), return_index=True, return_inverse=True)
    if len(other := np.flatnonzero(probabilities != probabilities[first][which])):
        image, caption = images[other[0]], captions[other[0]]
        values = probabilities[first[which[other[0]]]], probabilities[other[0]]
        raise ValueError(
            f"{name}: image {image} and caption {caption} are judged twice, to match with probability {values[0]:g} "
            f"and {values[1]:g}; keep one, or their mean."
        )
    pairs = np.stack([keys // caption_count, keys % caption_count], axis=1).astype(np.int32)
    return Judgements(pairs, probabilities[first].astype(np.float32))
