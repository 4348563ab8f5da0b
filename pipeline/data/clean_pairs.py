"""The probability that each training caption's pair is right, as a Parquet file with one row per caption.

caption_id    int32     row n is caption n
probability   float32   0 to 1
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32

from aoq.pipeline.columns import read_parquet
from aoq.pipeline.scratch import write_atomically

CLEAN_PAIRS = "clean_pairs.parquet"
"""The file beside the weights of co-taught networks."""
COLUMNS = pa.schema({"caption_id": pa.int64(), "probability": pa.float64()})
"""Columns as read; narrower types fit."""


def write_clean_pairs(path: Path, probabilities: Float32[np.ndarray, " captions"]) -> None:
    content = BytesIO()
    table = pa.table([np.arange(len(probabilities), dtype=np.int32), probabilities], names=COLUMNS.names)
    pq.write_table(table, content, compression="zstd", write_page_checksum=True)
    write_atomically(path, content.getvalue())


def read_clean_pairs(path: Path, captions: int) -> Float32[np.ndarray, " captions"]:
    """Read the probabilities of this many captions, in their order."""
    remedy = f"an experiment with [co_teaching] writes {CLEAN_PAIRS} beside its weights"
    rows, probabilities = (column.to_numpy() for column in read_parquet(path, COLUMNS, remedy=remedy).columns)
    if not np.array_equal(rows, np.arange(captions)):
        raise ValueError(
            f"{path} belongs to other captions: it has {len(rows)} rows for {captions} captions, and needs one row "
            "per caption, in order. Take the file of an experiment on the same training split."
        )
    if not ((probabilities >= 0).all() and (probabilities <= 1).all()):
        raise ValueError(f"{path}: probabilities lie between 0 and 1, and some of these do not.")
    return probabilities.astype(np.float32)
