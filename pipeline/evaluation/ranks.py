"""The ranks on dev, a Parquet file beside a training's weights with one row per query, and the rsum of random ranks.

direction   string   i2t: an image is the query; t2i: a caption is
query       int32    its row
rank        int32    of its (best) match, from 0
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.evaluation.retrieval import Identity, ImageOf, K, Ranks
from aoq.pipeline.files import write_atomically
from aoq.pipeline.reading import reading
from aoq.pipeline.search.positives import matching_pairs

DEV_RANKS = "dev_ranks.parquet"
_SCHEMA = pa.schema({"direction": "string", "query": "int32", "rank": "int32"})
_PERFECT = 200.0 * len(K)
_CHANCE_DEVIATIONS = 2
"""An rsum up to this many standard deviations above the mean is near chance: a training reports its best epoch. With
100 images or more that is up to 1.5 times the mean."""


def write_ranks(path: Path, ranks: Ranks) -> None:
    content = BytesIO()
    with pq.ParquetWriter(content, _SCHEMA, compression="zstd", write_page_checksum=True) as writer:
        for direction, values in (("i2t", ranks.i2t), ("t2i", ranks.t2i)):
            rows = [[direction] * len(values), np.arange(len(values)), values]
            writer.write_table(pa.table(rows, schema=_SCHEMA))
    write_atomically(path, content.getvalue())


def read_ranks(path: Path, *, images: int, captions: int) -> Ranks:
    """Read the ranks of this many images and captions, in their order."""
    with reading(path, "the ranks on dev of a training"):
        table = pq.read_table(path, schema=_SCHEMA, page_checksum_verification=True)
        direction, query, rank = (column.to_numpy() for column in table.columns)
        both = []
        for name, count, candidates in (("i2t", images, captions), ("t2i", captions, images)):
            queries, ranks = query[direction == name], rank[direction == name].astype(np.int64)
            if not np.array_equal(queries, np.arange(count)) or (ranks < 0).any() or (ranks >= candidates).any():
                raise ValueError(f"it does not have {images} images and {captions} captions")
            both.append(ranks)
        return Ranks(*both)


class Chance(NamedTuple):
    """Mean rsum if every order of the candidates is equally likely, and a bound on its standard deviation."""

    rsum: float
    deviation: float

    def explains(self, rsum: float) -> bool:
        """Return whether this rsum is near chance; False if there are too few candidates to tell.

        >>> chance = chance_level(np.arange(100))
        >>> chance.explains(37.4), chance.explains(60.0)
        (True, False)
        """
        return rsum <= self.rsum + _CHANCE_DEVIATIONS * self.deviation < _PERFECT


def chance_level(image_of: ImageOf, identity: Identity | None = None) -> Chance:
    """Compute the chance of a pairing. Queries count as independent, and both directions as fully correlated.

    Of N candidates, n of them right, one is among the first K in random order with probability 1 - C(N-n, K) / C(N, K).

    >>> chance_level(np.arange(10)).rsum  # 10, 50 and 100 %, in both directions
    320.0
    """
    pairs = matching_pairs(image_of, identity)
    images, captions = int(pairs[:, 0].max()) + 1 if identity is None else len(identity), len(image_of)
    rsum, deviation = 0.0, 0.0
    for column, queries, candidates in ((0, images, captions), (1, captions, images)):
        right = np.bincount(pairs[:, column], minlength=queries)
        drawn = np.arange(min(K[-1], candidates))[:, None]
        missed = np.clip((candidates - right - drawn) / (candidates - drawn), 0, 1)
        by_k = [1 - missed[:k].prod(axis=0) for k in K]
        hits = np.sum(by_k, axis=0)
        squares = sum(by_k[place] * (2 * (len(K) - place) - 1) for place in range(len(K)))  # a hit at 1 is one at 5
        rsum += 100 * hits.mean()
        deviation += 100 * np.sqrt((squares - hits**2).mean() / queries)
    return Chance(float(rsum), float(deviation))
