"""A judge's scores: the probability that an image and a caption match, as given by an MLLM or by people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from jaxtyping import Float32, Float64, Int64

from aoq.pipeline.columns import fitted, parse_csv, parse_json_lines, read_parquet
from aoq.pipeline.reading import reading
from aoq.pipeline.tables.files import PAIRS
from aoq.pipeline.tables.pairs import Pairs, pair_keys

Grades = tuple[float, float]
"""The lowest and the highest grade."""
REMEDY = (
    f"it needs rows, whole numbers, in the columns {' and '.join(PAIRS.names)}, and numbers in the column probability, "
    "or grade with judged_grades; `aoq to-judge` writes a file to fill in"
)


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


def read_judgements(
    given: Path | pa.Table, images: int, captions: int, *, grades: Grades | None = None, one_set: bool = False
) -> Judgements:
    """Read judgements from a file, or an Arrow table of the same columns; a pair without a value is not judged.

    The columns are caption_id and image_id, rows of the data, and probability; with `grades` (lowest, highest) it is
    grade, p = (grade - lowest) / (highest - lowest). In one set either order is the same pair, and the lower row comes
    first.

    Raises:
        ValueError: for unknown rows, values out of range, or a pair with two values.
    """
    value = "probability" if grades is None else "grade"
    name, columns = str(given) if isinstance(given, Path) else "judgements", _columns(given, value)
    caption_rows, image_rows = (columns[row].to_numpy().astype(np.int64) for row in PAIRS.names)
    values = columns[value].to_numpy()
    for side, rows, count in (("caption", caption_rows, captions), ("image", image_rows, images)):
        if len(outside := np.flatnonzero((rows < 0) | (rows >= count))):
            raise ValueError(
                f"{name}: pair {outside[0]} has {side} {rows[outside[0]]}, and there are {side}s 0 to {count - 1}."
            )
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


def _columns(given: Path | pa.Table, value: str) -> pa.Table:
    """Select the judged rows."""
    schema = pa.schema([*((name, pa.int64()) for name in PAIRS.names), (value, pa.float64())])
    if isinstance(given, Path):
        if given.suffix not in READERS:
            raise ValueError(f"{given} should hold judgements, in one of {', '.join(READERS)}.")
        with reading(given, "judgements", REMEDY):
            table = READERS[given.suffix](given, schema)
    else:
        table = fitted(given, schema, nullable=[value])
    return table.filter(table[value].is_valid())


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


READERS: dict[str, Callable[[Path, pa.Schema], pa.Table]] = {
    ".parquet": lambda path, columns: read_parquet(path, columns, nullable=columns.names[2:]),
    ".csv": lambda path, columns: parse_csv(path, columns, nullable=columns.names[2:]),
    ".tsv": lambda path, columns: parse_csv(path, columns, nullable=columns.names[2:], delimiter="\t"),
    ".jsonl": lambda path, columns: fitted(parse_json_lines(path), columns, nullable=columns.names[2:]),
}
