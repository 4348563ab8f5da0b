"""The ranks on dev, a Parquet file beside a training's weights with one row per query.

direction   string   i2t: an image is the query; t2i: a caption is
query       int32    its row
rank        int32    of its (best) match, from 0
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.evaluation.retrieval import Ranks
from aoq.pipeline.reading import reading
from aoq.pipeline.scratch import write_atomically

DEV_RANKS = "dev_ranks.parquet"
SCHEMA = pa.schema({"direction": "string", "query": "int32", "rank": "int32"})


def write_ranks(path: Path, ranks: Ranks) -> None:
    content = BytesIO()
    with pq.ParquetWriter(content, SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for direction, values in (("i2t", ranks.i2t), ("t2i", ranks.t2i)):
            rows = [[direction] * len(values), np.arange(len(values)), values]
            writer.write_table(pa.table(rows, schema=SCHEMA))
    write_atomically(path, content.getvalue())


def read_ranks(path: Path, *, images: int, captions: int) -> Ranks:
    """Read the ranks of this many images and captions, in their order."""
    with reading(path, "the ranks on dev of a training"):
        table = pq.read_table(path, schema=SCHEMA, page_checksum_verification=True)
        direction, query, rank = (column.to_numpy() for column in table.columns)
        both = []
        for name, count, candidates in (("i2t", images, captions), ("t2i", captions, images)):
            queries, ranks = query[direction == name], rank[direction == name].astype(np.int64)
            if not np.array_equal(queries, np.arange(count)) or (ranks < 0).any() or (ranks >= candidates).any():
                raise ValueError(f"it does not have {images} images and {captions} captions")
            both.append(ranks)
        return Ranks(*both)
