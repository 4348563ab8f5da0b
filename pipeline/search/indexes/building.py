"""Build an index once and keep it as an artefact, named after the vectors and the recipe.

It is kept in shards, files of at most `SHARD_BYTES` that are mapped, not loaded. So neither building nor searching
holds more than one shard in memory, and a crash loses one.
"""

from __future__ import annotations

import logging
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.search.brute_force import load_faiss
from aoq.pipeline.search.indexes.recipe import Recipe, empty_index, reason
from aoq.pipeline.search.problem import BLOCK, blocks

logger = logging.getLogger(__name__)

STAGE, STAGE_VERSION = "index", 1
SHARD_BYTES = 2**29
ID_BYTES = 8
LINK_BYTES = 4
ADDED = 65536
"""Vectors added to an index at a time."""
PER_CELL, LEAST_TRAINED = 64, 65536
"""Vectors that an index is trained on: so many a cell, and at least so many."""
TRAINED = "trained.faiss"

Vectors = Float32[np.ndarray, "vectors D"]


def build_index(vectors: Vectors, recipe: Recipe, root: Path, memory: int) -> Artifact:
    """Return the index of these vectors below `root`, after building it if it is not there.

    Raises ValueError if FAISS cannot train it, or if `memory`, in bytes, is too small.
    """
    shape = {"factory": recipe.factory, "shard_rows": shard_rows(recipe, vectors.shape[1])}
    made = Artifact(root, STAGE, STAGE_VERSION, {"vectors": vectors_sha256(vectors), **shape})
    if not made.exists():  # before a folder is made, so that a refusal leaves none
        _require_room(recipe, len(vectors), vectors.shape[1], memory)
    with made.building() as build:
        if build is not None:
            logger.info("building %s of %d vectors; it is kept in %s", recipe.factory, len(vectors), made.path)
            _fill(vectors, recipe, build.directory)
    return made


def vectors_sha256(vectors: Vectors) -> str:
    """Hash the shape and all rows."""
    found = sha256(repr(vectors.shape).encode())
    for start, stop in blocks(len(vectors), BLOCK):
        found.update(np.ascontiguousarray(vectors[start:stop]).data)
    return found.hexdigest()


def vector_bytes(recipe: Recipe, dimensions: int) -> int:
    """Bytes of a vector in an index: its code, its number, and the links of a graph.

    Codes of 8 bits are counted as such, and those of any other factory string as float32, at most.
    """
    code = dimensions if recipe.factory.endswith("SQ8") else 4 * dimensions
    links = 2 * 32 * LINK_BYTES if recipe.factory.startswith("HNSW") else 0
    return code + ID_BYTES + links


def shard_rows(recipe: Recipe, dimensions: int) -> int:
    return max(1, SHARD_BYTES // vector_bytes(recipe, dimensions))


def memory_needed(recipe: Recipe, vectors: int, dimensions: int) -> int:
    """Bytes that building takes at most: the training sample twice, or a shard and the vectors that are added."""
    sample = min(vectors, trained_on(recipe, dimensions))
    shard = min(vectors, shard_rows(recipe, dimensions)) * vector_bytes(recipe, dimensions)
    return max(2 * 4 * dimensions * sample, shard + 4 * dimensions * min(vectors, ADDED))


def trained_on(recipe: Recipe, dimensions: int) -> int:
    """Number of vectors that an index is trained on, if there are as many."""
    return max(LEAST_TRAINED, PER_CELL * _cells(recipe, dimensions))


def _cells(recipe: Recipe, dimensions: int) -> int:
    """Number of cells; 0 of an index that has none."""
    index = empty_index(recipe, dimensions)
    return int(getattr(load_faiss().try_extract_index_ivf(index), "nlist", 0))


def _require_room(recipe: Recipe, vectors: int, dimensions: int, memory: int) -> None:
    if vectors < (cells := _cells(recipe, dimensions)):
        raise ValueError(_untrainable(recipe, vectors, f"it has {cells} cells"))
    if (needed := memory_needed(recipe, vectors, dimensions)) > memory:
        raise ValueError(
            f"building {recipe.factory} of {vectors} vectors takes {needed / 1e6:.0f} MB, and mining may use "
            f"{memory / 1e6:.0f}; give at least {needed // 10**6 + 1} (--memory-mb, or mining_memory_mb in luigi.cfg)."
        )


def _fill(vectors: Vectors, recipe: Recipe, folder: Path) -> None:
    """Write every shard that is not there yet."""
    trained = folder / TRAINED
    parts = blocks(len(vectors), shard_rows(recipe, vectors.shape[1]))
    missing = [rows for rows in parts if not shard_file(folder, rows[0]).exists()]
    if missing and not trained.exists():
        _write(_train(vectors, recipe), trained)
    for rows in missing:
        _write(_shard(vectors, rows, trained), shard_file(folder, rows[0]))
    trained.unlink(missing_ok=True)


def shard_file(folder: Path, start: int) -> Path:
    """File of the shard whose first vector is `start`; names sort as rows do."""
    return folder / f"shard-{start:010d}.faiss"


def _train(vectors: Vectors, recipe: Recipe) -> Any:
    index = empty_index(recipe, vectors.shape[1])
    if not index.is_trained:
        try:
            index.train(_sample(vectors, trained_on(recipe, vectors.shape[1])))
        except RuntimeError as error:
            raise ValueError(_untrainable(recipe, len(vectors), reason(error))) from None
    return index


def _untrainable(recipe: Recipe, vectors: int, why: str) -> str:
    return f"FAISS cannot train {recipe.factory!r} on {vectors} vectors ({why}); ask for fewer clusters."


def _sample(vectors: Vectors, count: int) -> Vectors:
    rows: Int64[np.ndarray, " sample"] = np.arange(len(vectors))
    if count < len(vectors):
        rows = np.sort(np.random.default_rng(0).choice(len(vectors), count, replace=False))
    return np.ascontiguousarray(vectors[rows], dtype=np.float32)


def _shard(vectors: Vectors, rows: tuple[int, int], trained: Path) -> Any:
    faiss = load_faiss()
    index, threads = faiss.read_index(str(trained)), faiss.omp_get_max_threads()
    if hasattr(index, "hnsw"):
        faiss.omp_set_num_threads(1)  # threads would link a graph in an order of their own
    try:
        for start in range(*rows, ADDED):
            index.add(np.ascontiguousarray(vectors[start : min(start + ADDED, rows[1])], dtype=np.float32))
    finally:
        faiss.omp_set_num_threads(threads)
    return index


def _write(index: Any, file: Path) -> None:
    temporary = file.with_name(f".{file.name}.tmp")
    load_faiss().write_index(index, str(temporary))
    os.replace(temporary, file)
