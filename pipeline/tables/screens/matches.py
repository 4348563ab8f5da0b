"""Files of image–caption pairs that are known to match: human judgements such as CxC and ECCV Caption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from aoq.pipeline.columns import parse_csv, read_parquet
from aoq.pipeline.reading import parse_json, reading
from aoq.pipeline.tables.files import PAIRS
from aoq.pipeline.tables.pairs import Pairs

ROWS = pa.schema([(name, pa.int64()) for name in PAIRS.names])
REMEDY = f"it needs rows, whole numbers, in the columns {' and '.join(PAIRS.names)}, or json {{caption: [image, ...]}}"


def read_matches(path: Path, images: int, captions: int) -> Pairs:
    """Read pairs, by image, each once, from Parquet or CSV with the columns caption_id and image_id, or from json.

    They are rows of the data; json is {caption: [image, ...]}.
    """
    if path.suffix not in READERS:
        raise ValueError(f"{path} should hold pairs known to match, in one of {', '.join(READERS)}.")
    with reading(path, "pairs known to match", REMEDY):
        table = READERS[path.suffix](path)
    caption_rows, image_rows = (table[name].to_numpy() for name in PAIRS.names)
    for name, rows, count in (("caption", caption_rows, captions), ("image", image_rows, images)):
        if len(outside := np.flatnonzero((rows < 0) | (rows >= count))):
            raise ValueError(
                f"{path}: pair {outside[0]} has {name} {rows[outside[0]]}, and there are {name}s 0 to {count - 1}."
            )
    return np.unique(np.stack([image_rows, caption_rows], axis=1).astype(np.int32), axis=0)


def _json(path: Path) -> pa.Table:
    images_of = parse_json(path.read_bytes(), dict[str, list[int]])
    captions = [int(caption) for caption, images in images_of.items() for _ in images]
    return pa.table([captions, [image for images in images_of.values() for image in images]], schema=ROWS)


READERS: dict[str, Callable[[Path], pa.Table]] = {
    ".parquet": lambda path: read_parquet(path, ROWS),
    ".csv": lambda path: parse_csv(path, ROWS),
    ".json": _json,
}
