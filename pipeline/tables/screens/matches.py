"""Files of image–caption pairs that are known to match: people's judgements, as those of CxC and ECCV Caption."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq

from aoq.pipeline.tables.files import PAIRS
from aoq.pipeline.tables.pairs import Pairs


def read_matches(path: Path, images: int, captions: int) -> Pairs:
    """The pairs, by image, each once, from Parquet or CSV with the columns caption_id and image_id, or json.

    They are rows of the data; json is {caption: [image, ...]}.
    """
    if path.suffix not in READERS:
        raise ValueError(f"{path} should hold pairs known to match, in one of {', '.join(READERS)}.")
    try:
        table = READERS[path.suffix](path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; it should hold pairs known to match.") from None
    except (ValueError, TypeError, AttributeError, KeyError, pa.ArrowException) as error:
        raise ValueError(
            f"{path} cannot be read as pairs known to match ({error}); it needs rows as whole numbers, in the columns "
            f"{' and '.join(PAIRS.names)} or as json {{caption: [image, ...]}}."
        ) from None
    caption_rows, image_rows = (table[name].to_numpy().astype(np.int64) for name in PAIRS.names)
    for name, rows, count in (("caption", caption_rows, captions), ("image", image_rows, images)):
        if len(outside := np.flatnonzero((rows < 0) | (rows >= count))):
            raise ValueError(
                f"{path}: pair {outside[0]} has {name} {rows[outside[0]]}, and there are {name}s 0 to {count - 1}."
            )
    return np.unique(np.stack([image_rows, caption_rows], axis=1).astype(np.int32), axis=0)


def _parquet(path: Path) -> pa.Table:
    return _pairs(pq.read_table(path))


def _csv(path: Path) -> pa.Table:
    return _pairs(csv.read_csv(path))


def _json(path: Path) -> pa.Table:
    images_of = {int(caption): images for caption, images in json.loads(path.read_text(encoding="utf-8")).items()}
    counts = [len(images) for images in images_of.values()]
    captions = np.repeat(np.array(list(images_of), dtype=np.int64), counts)
    images = np.array([int(image) for images in images_of.values() for image in images], dtype=np.int64)
    return pa.table({"caption_id": captions, "image_id": images})


def _pairs(table: pa.Table) -> pa.Table:
    chosen = table.select(PAIRS.names)
    if not len(chosen):
        return PAIRS.empty_table()  # of no rows, a CSV tells no types
    if not all(pa.types.is_integer(field.type) for field in chosen.schema):
        raise ValueError(f"its columns are {[str(field.type) for field in chosen.schema]}, and rows are integers")
    if any(column.null_count for column in chosen.columns):
        raise ValueError("some of its rows are empty")
    return chosen


READERS = {".parquet": _parquet, ".csv": _csv, ".json": _json}
