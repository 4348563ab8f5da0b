"""An index of FAISS on disk: its recipe, its size, and how it is built shard by shard.

An index is an artefact whose key is its vectors and its recipe, so searches with other depths or pairs reuse it. Shards
are mapped, not loaded: neither building nor searching holds more than one in memory, and a crash loses at most one.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.search.faiss_flat import load_faiss
from aoq.pipeline.search.problem import READ_ROWS, blocks

logger = logging.getLogger(__name__)

_STAGE, _STAGE_VERSION = "index", 1
SHARD_BYTES = 2**29
ADDED = 65536  # vectors added to an index at a time
PER_CELL, LEAST_TRAINED = 64, 65536  # vectors to train on: this many per cell, and at least this many in all
CELL_LEAST = 39  # average number of vectors per cell; k-means needs as many to place a centre
WIDEST_GRAPH = 4096
LARGEST_NUMBER = 2**24
FORM = 'give a factory string, with parameters after "|" if need be: "faiss:IVF256,Flat|nprobe=32"'
FEWER = "ask for fewer clusters"
_IndexVectors = Float32[np.ndarray, "vectors D"]


class Recipe(NamedTuple):
    """An index: FAISS's factory string, and the parameters of its searches.

    Without parameters, `breadth` names the one that is chosen by measurement, up to `widest`.
    """

    factory: str
    parameters: str = ""
    breadth: str = ""
    widest: int = 0


def ivf(vectors: int) -> Recipe:
    """Plan about 4 sqrt(N) cells of similar vectors, rounded to a power of two; 8 bits per number."""
    wished = 2 ** round(math.log2(4 * math.sqrt(vectors)))
    cells = max(1, min(wished, 2 ** int(math.log2(max(1, vectors // CELL_LEAST)))))
    return Recipe(f"IVF{cells},SQ8", breadth="nprobe", widest=cells)


def hnsw(vectors: int) -> Recipe:
    """Plan a graph with 32 neighbours per vector; 8 bits per number."""
    return Recipe("HNSW32,SQ8", breadth="efSearch", widest=min(vectors, WIDEST_GRAPH))


def empty_index(recipe: Recipe, dimensions: int) -> Any:
    """Make an untrained index; refuse a recipe that FAISS does not know."""
    faiss, name = load_faiss(), "|".join(filter(None, (recipe.factory, recipe.parameters)))
    for parameter in filter(None, re.split("[,;]", recipe.parameters)):
        number = parameter.partition("=")[2]  # FAISS accepts any text and casts it to an integer
        if not re.fullmatch(r"\d+(\.\d+)?", number) or float(number) >= 2**31:
            raise ValueError(f"{name!r} sets {parameter!r}; parameters are NAME=N, with N from 0 to {2**31 - 1}.")
    if any(int(number) > LARGEST_NUMBER for number in re.findall(r"\d+", recipe.factory)):
        raise ValueError(f"{name!r} contains a number above {LARGEST_NUMBER:,}; lower it.")
    with able_to(f"build {name!r} in {dimensions} dimensions", FORM):
        index = faiss.index_factory(dimensions, recipe.factory, faiss.METRIC_INNER_PRODUCT)
        faiss.ParameterSpace().set_index_parameters(index, recipe.parameters)
    return index


@contextmanager
def able_to(work: str, remedy: str) -> Iterator[None]:
    """Turn a failure of FAISS into one sentence."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        is_memory = isinstance(error, MemoryError)
        why = "it takes too much memory" if is_memory else str(error).splitlines()[0].rpartition("Error: ")[2]
        raise ValueError(f"FAISS cannot {work} ({why}); {remedy}.") from None


class IndexSizes(NamedTuple):
    """Sizes of an index."""

    cells: int
    shard_rows: int
    trained_on: int
    memory: int
    """Peak bytes of building: twice the training sample, or a shard and the vectors being added."""

    @classmethod
    def of(cls, recipe: Recipe, vectors: int, dimensions: int) -> IndexSizes:
        cells = getattr(load_faiss().try_extract_index_ivf(empty_index(recipe, dimensions)), "nlist", 0)
        # Bytes per vector: its code, its id, and the links of a graph. Codes other than SQ8 are counted as float32.
        each = dimensions if recipe.factory.endswith("SQ8") else 4 * dimensions
        each += 8 + 2 * 32 * 4 * recipe.factory.startswith("HNSW")
        rows, sample = max(1, SHARD_BYTES // each), min(vectors, max(LEAST_TRAINED, PER_CELL * cells))
        adding = min(vectors, rows) * each + 4 * dimensions * min(vectors, ADDED)
        return cls(cells, rows, sample, max(2 * 4 * dimensions * sample, adding))


def build_index(vectors: _IndexVectors, recipe: Recipe, root: Path, memory: int) -> Artifact:
    """Return the index of these vectors below `root`; build it first if it is missing.

    Raises:
        ValueError: if FAISS cannot train it, or if `memory`, in bytes, is too small.
    """
    count, sizes = len(vectors), IndexSizes.of(recipe, *vectors.shape)
    hasher = sha256(repr(vectors.shape).encode())
    for start, stop in blocks(count, READ_ROWS):
        hasher.update(np.ascontiguousarray(vectors[start:stop]).data)
    ingredients = {"vectors": hasher.hexdigest(), "factory": recipe.factory, "shard_rows": sizes.shard_rows}
    index = Artifact(root, _STAGE, _STAGE_VERSION, ingredients)
    if not index.exists():  # refuse before a folder is made
        if count < sizes.cells:
            raise ValueError(f"FAISS needs {sizes.cells} vectors to train {recipe.factory!r}, got {count}; {FEWER}.")
        if sizes.memory > memory:
            raise ValueError(
                f"building {recipe.factory} of {count} vectors takes {sizes.memory / 1e6:.0f} MB, but mining may use "
                f"{memory / 1e6:.0f}; give at least {sizes.memory // 10**6 + 1} (--memory-mb, or mining_memory_mb in "
                "luigi.cfg)."
            )
    with index.building() as build:
        if build is not None:
            logger.info("building %s of %d vectors; it is kept in %s", recipe.factory, count, index.path)
            _fill(vectors, recipe, sizes, build.directory)
    return index


def _fill(vectors: _IndexVectors, recipe: Recipe, sizes: IndexSizes, folder: Path) -> None:
    """Write every missing shard. The first one is trained, and the others copy its training."""
    files = {rows: folder / f"shard-{rows[0]:010d}.faiss" for rows in blocks(len(vectors), sizes.shard_rows)}
    for rows, file in files.items():  # names sort as rows do
        if not file.exists():
            index = _shard(vectors, rows, recipe, sizes, next(iter(files.values())))
            load_faiss().write_index(index, str(temporary := file.with_suffix(".tmp")))
            os.replace(temporary, file)


def _shard(vectors: _IndexVectors, rows: tuple[int, int], recipe: Recipe, sizes: IndexSizes, first: Path) -> Any:
    faiss = load_faiss()
    if first.exists():
        index = faiss.read_index(str(first))
        index.reset()
    elif not (index := empty_index(recipe, vectors.shape[1])).is_trained:
        sample = vectors[sampled_rows(len(vectors), sizes.trained_on, seed=0)]
        with able_to(f"train {recipe.factory!r} on {len(vectors)} vectors", FEWER):
            index.train(np.ascontiguousarray(sample, dtype=np.float32))
    threads = faiss.omp_get_max_threads()
    if hasattr(index, "hnsw"):
        faiss.omp_set_num_threads(1)  # with threads, the links would depend on their timing
    try:
        with able_to(f"add {rows[1] - rows[0]} vectors to {recipe.factory!r}", "choose another factory string"):
            for start in range(*rows, ADDED):
                index.add(np.ascontiguousarray(vectors[start : min(start + ADDED, rows[1])], dtype=np.float32))
    finally:
        faiss.omp_set_num_threads(threads)
    return index


def sampled_rows(count: int, size: int, seed: int) -> Int64[np.ndarray, " sample"]:
    """Draw `size` of `count` rows, or all if there are fewer."""
    return np.sort(np.random.default_rng(seed).choice(count, min(size, count), replace=False))


@lru_cache(maxsize=4)
def opened_index(folder: Path) -> Any:
    """Map the shards of an index."""
    faiss = load_faiss()
    mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)  # IFC covers all index types, since FAISS 1.11
    shards = [faiss.read_index(str(file), mapped) for file in sorted(folder.glob("shard-*.faiss"))]
    whole = faiss.IndexShards(shards[0].d, False, True)
    if isinstance(shards[0], faiss.IndexIVF):  # all shards share the cells of the first
        whole = faiss.IndexShardsIVF(shards[0].quantizer, shards[0].nlist, False, True)
    for shard in shards:
        whole.add_shard(shard)
    return whole
