"""Backends ivf, hnsw and faiss:FACTORY: an index proposes candidates, and their scores are exact.

Each direction's candidates have an index, kept as an artefact: it depends on them and on its recipe alone, so other
depths, other pairs and other runs find it there. Recall is measured on the lists that were written.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa

from aoq.pipeline.search.brute_force import load_faiss
from aoq.pipeline.search.exact import lists_table
from aoq.pipeline.search.indexes.asking import Index, near_lists, opened_index
from aoq.pipeline.search.indexes.building import build_index
from aoq.pipeline.search.indexes.recall import fraction_found, last_true_scores, sampled_rows, wilson_interval
from aoq.pipeline.search.indexes.recipe import Recipe, as_described, empty_index, hnsw, ivf
from aoq.pipeline.search.indexes.tuning import choose_breadth
from aoq.pipeline.search.lists import from_arrow
from aoq.pipeline.search.problem import Direction, Problem, blocks
from aoq.pipeline.search.store import Folder, Memory, Store
from aoq.pipeline.search.units import Backend, Steps, Unit, unit_name

FACTORY = "faiss:"
BLOCK = 4096
"""Anchors per unit; a crash loses at most one unit."""
SAMPLED = 512
"""Anchors of each direction whose lists are compared with an exact search."""
TUNED_ON = 1024
"""Other anchors, on which the breadth is chosen."""
MOST_TIMES = 2
"""A direction whose recall falls short is searched more widely this many times, at most."""
_TEMPORARY: weakref.WeakKeyDictionary[Memory, Path] = weakref.WeakKeyDictionary()

ABOUT = {
    "ivf": "approximate, by as many cells of an index as the recall floor needs; the index is kept",
    "hnsw": "approximate, by a graph, searched as widely as the recall floor needs; the graph is kept",
    "faiss:FACTORY": 'approximate, by an index of FAISS such as "faiss:IVF256,Flat|nprobe=32", which is kept',
}
RECIPES: dict[str, Callable[[int], Recipe]] = {"ivf": ivf, "hnsw": hnsw}


@dataclass(frozen=True)
class Indexed:
    """A search by an index: its recipe for a number of vectors, the wanted recall, and the folder that keeps it.

    Without a folder, `kept`, it lasts as long as the units of the search.
    """

    name: str
    recipe: Callable[[int], Recipe]
    wanted: float
    kept: Path | None
    widened: Mapping[Direction, int] = field(default_factory=dict)
    """How often a direction was searched more widely, as what was found fell short."""

    def label(self, direction: Direction) -> str:
        """Name the breadth: that of another recall is another one, and so is each wider one."""
        times = self.times(direction)
        return f"{self.wanted:g}+{times}" if times else f"{self.wanted:g}"

    def times(self, direction: Direction) -> int:
        return self.widened.get(direction, 0)

    def list_name(self, direction: Direction, start: int, stop: int) -> str:
        return unit_name(f"{direction}-{self.label(direction)}", start, stop)

    def breadth_name(self, direction: Direction) -> str:
        return f"breadth-{self.label(direction)}-{direction}"

    def recall_name(self, direction: Direction) -> str:
        return f"recall-{self.label(direction)}-{direction}"

    def root(self, store: Store) -> Path:
        if self.kept is not None:
            return self.kept
        if isinstance(store, Folder):
            return store.path / "indexes"
        if store not in _TEMPORARY:
            _TEMPORARY[store] = Path(mkdtemp(prefix="aoq-"))
            weakref.finalize(store, shutil.rmtree, _TEMPORARY[store], ignore_errors=True)
        return _TEMPORARY[store]


def indexed_backend(name: str, wanted: float, kept: Path | None) -> Backend:
    """Make a backend of an index: `ivf`, `hnsw`, or `faiss:` and a factory string."""
    recipe = RECIPES[name] if name in RECIPES else as_described(name.removeprefix(FACTORY))
    return _backend(Indexed(name, recipe, wanted, kept))


def _backend(how: Indexed) -> Backend:
    about = ABOUT[how.name if how.name in ABOUT else "faiss:FACTORY"]
    return Backend(
        how.name, about, partial(_steps, how), guarantee=partial(_guarantee, how), widened=partial(_widened, how)
    )


def _widened(how: Indexed, problem: Problem, store: Store, short: Sequence[Direction]) -> Backend | None:
    """Search some directions again, more widely; None if one cannot be, or was twice."""
    for direction in short:
        recipe = _recipe(how, direction, problem)
        if how.times(direction) == MOST_TIMES or _parameters(how, direction, store) in ("", recipe.at(recipe.widest)):
            return None
    return _backend(replace(how, widened={**how.widened, **{d: how.times(d) + 1 for d in short}}))


def _steps(how: Indexed, problem: Problem) -> Steps[Problem]:
    load_faiss()  # fails here, before anything is read, where FAISS is missing
    for direction in problem.directions:  # a wrong description fails here
        empty_index(how.recipe(problem.size(direction).candidates), problem.images.shape[1])
    lists = [
        Unit((how.list_name(direction, *rows),), partial(_search, how, direction, *rows))
        for direction in problem.directions
        for rows in blocks(problem.size(direction).anchors, BLOCK)
    ]
    return [
        [Unit((f"index-{direction}",), partial(_index, how, direction)) for direction in problem.directions],
        [Unit((how.breadth_name(d),), partial(_breadth, how, d)) for d in problem.directions],
        lists,
        [Unit((how.recall_name(d),), partial(_recall, how, d)) for d in problem.directions],
    ]


def _recipe(how: Indexed, direction: Direction, problem: Problem) -> Recipe:
    return how.recipe(problem.size(direction).candidates)


def _index(how: Indexed, direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
    """Build the index of the candidates unless it is there, and note where."""
    recipe = _recipe(how, direction, problem)
    made = build_index(problem[direction].candidates, recipe, how.root(store), problem.memory)
    return [pa.table({"factory": [recipe.factory], "key": [made.key], "path": [str(made.opened())]})]


def _opened(how: Indexed, direction: Direction, problem: Problem, store: Store) -> Index:
    folder = Path(store.read(f"index-{direction}")["path"][0].as_py())
    if not folder.is_dir():  # deleted since this search began
        _index(how, direction, problem, store)
    return opened_index(folder)


def _breadth(how: Indexed, direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
    """Choose the breadth on anchors that another seed draws than those of the recall.

    A wider one is chosen on new anchors, twice as many, and never on those whose recall fell short.
    """
    recipe, whole, times = _recipe(how, direction, problem), problem[direction], how.times(direction)
    if not recipe.breadth:
        return [pa.table({"parameters": [recipe.parameters]})]
    before = replace(how, widened={direction: times - 1})
    beyond = int(_parameters(before, direction, store).partition("=")[2]) if times else 0
    side = whole.rows(sampled_rows(len(whole.anchors), TUNED_ON * 2**times, seed=1 + 2 * times))
    index, last = _opened(how, direction, problem, store), last_true_scores(side)
    tried = choose_breadth(
        recipe,
        how.wanted,
        len(whole.anchors),
        lambda breadth: fraction_found(near_lists(index, side, recipe.at(breadth)).scores, last),
        beyond,
    )
    return [pa.table({"parameters": list(map(recipe.at, tried)), "recall": list(tried.values())})]


def _parameters(how: Indexed, direction: Direction, store: Store) -> str:
    return str(store.read(how.breadth_name(direction))["parameters"][-1].as_py())


def _search(
    how: Indexed, direction: Direction, start: int, stop: int, problem: Problem, store: Store
) -> list[pa.Table]:
    side = problem[direction].rows(np.arange(start, stop))
    found = near_lists(_opened(how, direction, problem, store), side, _parameters(how, direction, store))
    return [lists_table(side, found, start)]


def _recall(how: Indexed, direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
    """Fraction found of the lists of sampled anchors, drawn anew for each breadth, by the lists that were written."""
    whole = problem[direction]
    count = len(whole.anchors)
    rows = sampled_rows(count, SAMPLED, seed=2 * how.times(direction))
    last, found = last_true_scores(whole.rows(rows)), []
    for start, stop in blocks(count, BLOCK):
        if len(here := rows[(rows >= start) & (rows < stop)] - start):
            found.append(from_arrow(store.read(how.list_name(direction, start, stop))).scores[here])
    fractions = fraction_found(np.concatenate(found), last)
    return [pa.table({"anchor_id": rows, "recall": fractions, "anchors": np.full(len(rows), count)})]


def _guarantee(how: Indexed, store: Store, direction: Direction) -> dict[str, Any]:
    """Recall at h of the lists of sampled anchors, its interval, the number of these anchors, and the index."""
    measured, index = store.read(how.recall_name(direction)), store.read(f"index-{direction}")
    recall, sampled = float(measured["recall"].to_numpy().mean()), len(measured)
    interval = wilson_interval(recall, sampled, measured["anchors"][0].as_py())
    return {
        "guarantee": "approximate",
        "recall": round(recall, 6),
        "recall_interval": [round(end, 6) for end in interval],
        "recall_anchors": sampled,
        "index": {
            "factory": index["factory"][0].as_py(),
            "parameters": _parameters(how, direction, store),
            "key": index["key"][0].as_py(),
            **({"widened": how.times(direction)} if how.times(direction) else {}),
        },
    }
