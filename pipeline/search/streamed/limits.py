"""Limits of captions: scores that an h-th best negative among all images should reach, by a sample of images.

A limit proves nothing and is exact in nothing: it only decides how many pairs wait for the merge. A caption whose limit
is too high is searched again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float32

from aoq.pipeline.search.onepass import sample_and_rank
from aoq.pipeline.search.problem import Problem, blocks
from aoq.pipeline.search.ranges import read_rows
from aoq.pipeline.search.rows import all_rows, read_all
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.streamed.block import Sizes
from aoq.pipeline.search.streamed.near import Near
from aoq.pipeline.search.units import unit_name

SAMPLE, LIMITS = "sample", "limits"


def sample(start: int, stop: int, device: str, problem: Problem, store: Store) -> list[pa.Table]:
    """Copy the sampled ones of these images, so that nobody has to pick rows of all."""
    count = problem.size("t2i").candidates
    size, _ = sample_and_rank(count, problem.size("t2i").wanted)
    chosen = np.sort(np.random.default_rng(0).choice(count, size, replace=False))
    dimensions = problem.images.shape[1]
    chunk = Sizes.of(problem.memory, 1, dimensions).chunk
    taken = [np.empty((0, dimensions), np.float32)]
    for first, last in blocks(stop - start, chunk):
        rows = chosen[(chosen >= start + first) & (chosen < start + last)] - start - first
        taken.append(read_rows(problem.images, start + first, start + last)[rows])
    flat = pa.array(np.concatenate(taken).reshape(-1))
    return [pa.table({"vector": pa.FixedSizeListArray.from_arrays(flat, dimensions)})]


def limits(start: int, stop: int, device: str, problem: Problem, store: Store) -> list[pa.Table]:
    """Take each caption's score of the rank in the sample that about `wanted` of all images should reach."""
    size = problem.size("t2i")
    _, rank = sample_and_rank(size.candidates, size.wanted)
    found = []
    sizes = Sizes.of(problem.memory, 1, problem.images.shape[1])
    for first, last in blocks(stop - start, min(4096, sizes.chunk)):
        captions = read_rows(problem.captions, start + first, start + last)
        best = torch.full((len(captions), rank), -torch.inf)
        for vectors in _sampled(store, size.candidates):
            near, tile = Near(captions, vectors, problem.longest, device), max(1, sizes.pairs // len(captions))
            for tile_start, tile_stop in blocks(len(vectors), tile):
                scores = near.scores(tile_start, tile_stop).cpu()
                best = torch.cat([best, scores], 1).topk(rank, sorted=True).values
        found.append(best[:, -1].numpy())
    return [pa.table({"limit": np.concatenate(found)})]


def _sampled(store: Store, images: int) -> Iterator[Float32[np.ndarray, "sampled D"]]:
    for rows in all_rows(store, SAMPLE, images):
        column = store.read(unit_name(SAMPLE, *rows))["vector"].combine_chunks()
        if len(column):
            yield column.flatten().to_numpy().reshape(len(column), -1).copy()


def read_limits(store: Store, captions: int) -> Float32[np.ndarray, " captions"]:
    """Limits of all captions, 4 bytes each."""
    return read_all(store, LIMITS, captions)["limit"].to_numpy()
