"""Backends ivf, hnsw and faiss:FACTORY: an index proposes candidates, and their scores are exact.

Each direction's candidates have an index, kept as an artefact: it depends on them and on its recipe alone, so other
depths, other pairs and other runs find it there. Its shards are files that are mapped, not loaded, so neither building
nor searching holds more than one in memory, and a crash loses one. Recall is measured on the lists that were written.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float32

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.search.exact import lists_table, rescored
from aoq.pipeline.search.faiss_flat import load_faiss
from aoq.pipeline.search.kept import Heads
from aoq.pipeline.search.lists import from_arrow
from aoq.pipeline.search.problem import Direction, Problem, Side, blocks
from aoq.pipeline.search.recall import choose_breadth, last_true_scores, sampled_rows, wilson_interval
from aoq.pipeline.search.store import Folder, Store
from aoq.pipeline.search.units import Backend, Steps, Unit, unit_name

logger = logging.getLogger(__name__)

STAGE, STAGE_VERSION = "index", 1
SHARD_BYTES = 2**29
ADDED = 65536  # vectors added to an index at a time
PER_CELL, LEAST_TRAINED = 64, 65536  # vectors to train on: this many per cell, and at least this many in all
CELL_LEAST = 39  # vectors in a cell, on average; k-means needs as many to place a centre
WIDEST_GRAPH = 4096
BLOCK = 4096  # anchors per unit; a crash loses at most one unit
SLACK = 32  # candidates requested beyond h and the positives, as an index misjudges some; of long lists a quarter
SAMPLED, TUNED_ON = 512, 1024  # anchors on which recall is measured, and others on which the breadth is chosen
MOST_TIMES = 2  # a direction whose recall falls short is searched more widely this many times, at most
FACTORY = "faiss:"
Vectors = Float32[np.ndarray, "vectors D"]


class Recipe(NamedTuple):
    """An index: FAISS's factory string, and the parameters of its searches.

    Without parameters, `breadth` names the one that is chosen by measurement, up to `widest`.
    """

    factory: str
    parameters: str = ""
    breadth: str = ""
    widest: int = 0


def ivf(vectors: int) -> Recipe:
    """Cells of similar vectors, in 8-bit numbers: about 4 sqrt(N) of them, a power of two."""
    wished = 2 ** round(math.log2(4 * math.sqrt(vectors)))
    cells = max(1, min(wished, 2 ** int(math.log2(max(1, vectors // CELL_LEAST)))))
    return Recipe(f"IVF{cells},SQ8", breadth="nprobe", widest=cells)


def hnsw(vectors: int) -> Recipe:
    """A graph with 32 neighbours for each vector, in 8-bit numbers."""
    return Recipe("HNSW32,SQ8", breadth="efSearch", widest=min(vectors, WIDEST_GRAPH))


RECIPES: dict[str, Callable[[int], Recipe]] = {"ivf": ivf, "hnsw": hnsw}
ABOUT = {
    "ivf": "approximate, by as many cells of an index as the recall floor needs; the index is kept",
    "hnsw": "approximate, by a graph, searched as widely as the recall floor needs; the graph is kept",
}
ABOUT_FACTORY = 'approximate, by an index of FAISS such as "faiss:IVF256,Flat|nprobe=32", which is kept'


def empty_index(recipe: Recipe, dimensions: int) -> Any:
    """Make an untrained index; a recipe that FAISS does not know is refused."""
    faiss, asked = load_faiss(), "|".join(filter(None, (recipe.factory, recipe.parameters)))
    for parameter in filter(None, re.split("[,;]", recipe.parameters)):
        number = parameter.partition("=")[2]  # FAISS accepts anything, and casts it to an integer of its own
        if not re.fullmatch(r"\d+(\.\d+)?", number) or float(number) >= 2**31:
            raise ValueError(f"{asked!r} sets {parameter!r}; parameters are NAME=N, with N from 0 to {2**31 - 1}.")
    try:
        index = faiss.index_factory(dimensions, recipe.factory, faiss.METRIC_INNER_PRODUCT)
        faiss.ParameterSpace().set_index_parameters(index, recipe.parameters)
    except RuntimeError as error:
        raise ValueError(
            f"FAISS makes no index of {asked!r} in {dimensions} dimensions ({_reason(error)}); "
            'give a factory string, with parameters after "|" if need be: "faiss:IVF256,Flat|nprobe=32".'
        ) from None
    return index


def _reason(error: RuntimeError) -> str:
    return str(error).splitlines()[0].rpartition("Error: ")[2]


def _untrainable(recipe: Recipe, vectors: int, why: str) -> ValueError:
    return ValueError(f"FAISS cannot train {recipe.factory!r} on {vectors} vectors ({why}); ask for fewer clusters.")


class Sizes(NamedTuple):
    """Sizes of an index."""

    cells: int
    vector_bytes: int
    """Bytes of a vector: its code, its number, and the links of a graph.

    Codes of 8 bits are counted as such, and those of any other factory string as float32, at most.
    """
    shard_rows: int
    trained_on: int
    memory: int
    """Bytes that building takes at most: the training sample twice, or a shard and the vectors that are added."""

    @classmethod
    def of(cls, recipe: Recipe, vectors: int, dimensions: int) -> Sizes:
        cells = getattr(load_faiss().try_extract_index_ivf(empty_index(recipe, dimensions)), "nlist", 0)
        each = dimensions if recipe.factory.endswith("SQ8") else 4 * dimensions
        each += 8 + 2 * 32 * 4 * recipe.factory.startswith("HNSW")
        rows, sample = max(1, SHARD_BYTES // each), min(vectors, max(LEAST_TRAINED, PER_CELL * cells))
        adding = min(vectors, rows) * each + 4 * dimensions * min(vectors, ADDED)
        return cls(cells, each, rows, sample, max(2 * 4 * dimensions * sample, adding))


def build_index(vectors: Vectors, recipe: Recipe, root: Path, memory: int) -> Artifact:
    """Return the index of these vectors below `root`, after building it if it is not there.

    Raises:
        ValueError: if FAISS cannot train it, or if `memory`, in bytes, is too small.
    """
    count, sizes = len(vectors), Sizes.of(recipe, *vectors.shape)
    found = sha256(repr(vectors.shape).encode())
    for start, stop in blocks(count, BLOCK):
        found.update(np.ascontiguousarray(vectors[start:stop]).data)
    ingredients = {"vectors": found.hexdigest(), "factory": recipe.factory, "shard_rows": sizes.shard_rows}
    made = Artifact(root, STAGE, STAGE_VERSION, ingredients)
    if not made.exists():  # before a folder is made, so that a refusal leaves none
        if count < sizes.cells:
            raise _untrainable(recipe, count, f"it has {sizes.cells} cells")
        if sizes.memory > memory:
            raise ValueError(
                f"building {recipe.factory} of {count} vectors takes {sizes.memory / 1e6:.0f} MB, and mining may use "
                f"{memory / 1e6:.0f}; give at least {sizes.memory // 10**6 + 1} (--memory-mb, or mining_memory_mb in "
                "luigi.cfg)."
            )
    with made.building() as build:
        if build is not None:
            logger.info("building %s of %d vectors; it is kept in %s", recipe.factory, count, made.path)
            _fill(vectors, recipe, sizes, build.directory)
    return made


def _fill(vectors: Vectors, recipe: Recipe, sizes: Sizes, folder: Path) -> None:
    """Write every shard that is not there yet. The first one is trained, and the others take its training."""
    files = {rows: folder / f"shard-{rows[0]:010d}.faiss" for rows in blocks(len(vectors), sizes.shard_rows)}
    for rows, file in files.items():  # names sort as rows do
        if not file.exists():
            index = _shard(vectors, rows, recipe, sizes, next(iter(files.values())))
            load_faiss().write_index(index, str(temporary := file.with_suffix(".tmp")))
            os.replace(temporary, file)


def _shard(vectors: Vectors, rows: tuple[int, int], recipe: Recipe, sizes: Sizes, first: Path) -> Any:
    faiss = load_faiss()
    if first.exists():
        index = faiss.read_index(str(first))
        index.reset()
    elif not (index := empty_index(recipe, vectors.shape[1])).is_trained:
        sample = vectors[sampled_rows(len(vectors), sizes.trained_on, seed=0)]
        try:
            index.train(np.ascontiguousarray(sample, dtype=np.float32))
        except RuntimeError as error:
            raise _untrainable(recipe, len(vectors), _reason(error)) from None
    threads = faiss.omp_get_max_threads()
    if hasattr(index, "hnsw"):
        faiss.omp_set_num_threads(1)  # threads would link a graph in an order of their own
    try:
        for start in range(*rows, ADDED):
            index.add(np.ascontiguousarray(vectors[start : min(start + ADDED, rows[1])], dtype=np.float32))
    finally:
        faiss.omp_set_num_threads(threads)
    return index


@lru_cache(maxsize=4)
def opened_index(folder: Path) -> Any:
    """Map the shards of an index; the system caches what fits."""
    faiss = load_faiss()
    mapped = getattr(faiss, "IO_FLAG_MMAP_IFC", faiss.IO_FLAG_MMAP)  # the former since 1.11, for all indexes
    shards = [faiss.read_index(str(file), mapped) for file in sorted(folder.glob("shard-*.faiss"))]
    whole = faiss.IndexShards(shards[0].d, False, True)
    if isinstance(shards[0], faiss.IndexIVF):  # all shards have the same cells, which are chosen once
        whole = faiss.IndexShardsIVF(shards[0].quantizer, shards[0].nlist, False, True)
    for shard in shards:
        whole.add_shard(shard)
    return whole


def candidates_asked(wanted: int) -> int:
    """Number of candidates that an index is asked for, where the `wanted` best are needed."""
    return wanted + max(SLACK, wanted // 4)


def near_lists(index: Any, side: Side, parameters: str) -> Heads:
    """Score exactly what the index finds of these anchors; nothing bounds what it does not find."""
    load_faiss().ParameterSpace().set_index_parameters(index, parameters)
    asked = min(candidates_asked(side.size.wanted), len(side.candidates))
    return rescored(side, index.search(np.ascontiguousarray(side.anchors, dtype=np.float32), asked)[1])


@dataclass(frozen=True)
class Indexed:
    """A search by an index, for the recall `wanted`; without a folder `kept`, the index lasts as long as the units."""

    name: str
    wanted: float
    kept: Path | None
    times: Mapping[Direction, int] = field(default_factory=lambda: {"i2t": 0, "t2i": 0})
    """How often a direction was searched more widely, as what was found fell short."""

    def backend(self) -> Backend:
        about = ABOUT.get(self.name, ABOUT_FACTORY)
        return Backend(self.name, about, self._steps, guarantee=self._guarantee, widened=self._widened)

    def _widened(self, problem: Problem, store: Store, short: Sequence[Direction]) -> Backend | None:
        """Search some directions again, more widely; None if one cannot be, or was twice."""
        for direction in short:
            *_, breadth, widest = self._recipe(direction, problem)
            is_widest = self._index(direction, store)[1] == f"{breadth}={widest}"
            if not breadth or is_widest or self.times[direction] == MOST_TIMES:
                return None
        return replace(self, times={**self.times, **{d: self.times[d] + 1 for d in short}}).backend()

    def _recipe(self, direction: Direction, problem: Problem) -> Recipe:
        if self.name in RECIPES:
            return RECIPES[self.name](problem.size(direction).candidates)
        factory, _, parameters = self.name.removeprefix(FACTORY).partition("|")
        return Recipe(factory, parameters)

    def _label(self, direction: Direction) -> str:
        """Name the breadth: that of another recall is another one, and so is each wider one."""
        return f"{direction}-{self.wanted:g}+{self.times[direction]}"

    def _index(self, direction: Direction, store: Store) -> tuple[Path, str]:
        """Folder of the index, and the parameters of its searches."""
        (row,) = store.read(f"index-{self._label(direction)}").to_pylist()
        return Path(row["path"]), row["parameters"]

    def _steps(self, problem: Problem) -> Steps[Problem]:
        sides = [(direction, self._label(direction)) for direction in problem.directions]
        for direction, _ in sides:  # a wrong description fails here, before anything is read
            empty_index(self._recipe(direction, problem), problem.images.shape[1])
        return [
            [Unit((f"index-{label}",), partial(self._prepare, direction)) for direction, label in sides],
            [
                Unit((unit_name(label, *rows),), partial(self._search, direction, slice(*rows)))
                for direction, label in sides
                for rows in blocks(problem.size(direction).anchors, BLOCK)
            ],
            [Unit((f"recall-{label}",), partial(self._recall, direction)) for direction, label in sides],
        ]

    def _prepare(self, direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
        """Build the index of the candidates unless it is there, and choose the breadth of its searches.

        Breadth and recall are measured on anchors that different seeds draw. A wider breadth is chosen on new anchors,
        twice as many, and never on those whose recall fell short.
        """
        recipe, whole, times = self._recipe(direction, problem), problem[direction], self.times[direction]
        beyond, count, parameters = 0, len(whole.anchors), recipe.parameters
        if times:
            folder, before = replace(self, times={direction: times - 1})._index(direction, store)
            beyond = int(before.partition("=")[2])
        else:
            folder = self._built(direction, problem, store)
        if recipe.breadth:
            sample = whole.rows(sampled_rows(count, TUNED_ON * 2**times, seed=1 + 2 * times))
            index, last = opened_index(folder), last_true_scores(sample)

            def measure(breadth: int) -> np.ndarray:
                return (near_lists(index, sample, f"{recipe.breadth}={breadth}").scores >= last).mean(axis=1)

            named = f"{recipe.factory}|{recipe.breadth}"
            chosen = choose_breadth(named, recipe.widest, measure, self.wanted, count, beyond)
            parameters = f"{recipe.breadth}={chosen}"
        return [pa.table({"path": [str(folder)], "parameters": [parameters]})]

    def _built(self, direction: Direction, problem: Problem, store: Store) -> Path:
        root = store.path / "indexes" if self.kept is None and isinstance(store, Folder) else self.kept
        if root is None:
            root = Path(mkdtemp(prefix="aoq-"))
            weakref.finalize(store, shutil.rmtree, root, ignore_errors=True)
        candidates = problem[direction].candidates
        return build_index(candidates, self._recipe(direction, problem), root, problem.memory).opened()

    def _search(self, direction: Direction, rows: slice, problem: Problem, store: Store) -> list[pa.Table]:
        folder, parameters = self._index(direction, store)
        if not folder.is_dir():  # deleted since this search began
            self._built(direction, problem, store)
        side = problem[direction].rows(rows)
        return [lists_table(side, near_lists(opened_index(folder), side, parameters), rows.start)]

    def _recall(self, direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
        """Measure the lists that were written, at sampled anchors, drawn anew for each breadth."""
        whole, times = problem[direction], self.times[direction]
        count, found = len(whole.anchors), []
        sample = sampled_rows(count, SAMPLED, seed=2 * times)
        for start, stop in blocks(count, BLOCK):
            if len(here := sample[(sample >= start) & (sample < stop)] - start):
                found.append(from_arrow(store.read(unit_name(self._label(direction), start, stop))).scores[here])
        recall = float((np.concatenate(found) >= last_true_scores(whole.rows(sample))).mean())
        folder, parameters = self._index(direction, store)
        factory = self._recipe(direction, problem).factory
        index = {"factory": factory, "parameters": parameters, "key": folder.name}
        said = {
            "guarantee": "approximate",
            "recall": round(recall, 6),
            "recall_interval": [round(end, 6) for end in wilson_interval(recall, len(sample), count)],
            "recall_anchors": len(sample),
            "index": {**index, "widened": times} if times else index,
        }
        return [pa.table({"guarantee": [json.dumps(said)]})]

    def _guarantee(self, store: Store, direction: Direction) -> dict[str, Any]:
        return dict(json.loads(store.read(f"recall-{self._label(direction)}")["guarantee"][0].as_py()))
