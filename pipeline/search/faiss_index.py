"""Backends ivf, hnsw and faiss:FAISS_PREFIX: an index proposes candidates, which are then scored exactly.

Recall is measured on the lists that were written, at sampled anchors that are also searched exactly.
"""

from __future__ import annotations

import json
import logging
import math
import shutil
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from aoq.pipeline.search.exact import exact_heads, lists_table, rescored
from aoq.pipeline.search.faiss_build import (
    FORM,
    Recipe,
    able_to,
    build_index,
    empty_index,
    hnsw,
    ivf,
    opened_index,
    sampled_rows,
)
from aoq.pipeline.search.faiss_flat import ANCHOR_ROWS, SLACK, load_faiss, portions
from aoq.pipeline.search.lists import from_arrow
from aoq.pipeline.search.pool import Heads
from aoq.pipeline.search.problem import Direction, Problem, Side, blocks
from aoq.pipeline.search.units import Backend, Folder, Steps, Store, Unit, unit_name

logger = logging.getLogger(__name__)

MEASURED_ON, TUNED_ON = 512, 1024  # anchors on which recall is measured, and others on which the breadth is chosen
MOST_TIMES = 2  # a direction whose recall falls short is searched more widely at most this often
FAISS_PREFIX = "faiss:"
RECIPES: dict[str, Callable[[int], Recipe]] = {"ivf": ivf, "hnsw": hnsw}
_ABOUT = {
    "ivf": "approximate, by an IVF index that searches as many cells as the recall floor needs; it is kept",
    "hnsw": "approximate, by a graph, searched as widely as the recall floor needs; the graph is kept",
}
ABOUT_FACTORY = 'approximate, by an index of FAISS such as "faiss:IVF256,Flat|nprobe=32", which is kept'
NORMAL_QUANTILE = 1.959964
"""The 97.5 % quantile, so that the interval covers 95 %."""
_RECALL_DEVIATIONS = 3 * math.sqrt(3)
"""Standard errors by which the sample's recall must exceed the wanted one. A second sample, half as large, decides
later; the difference of the two has sqrt(3) times the standard error, and hardly ever exceeds three times that."""
STEP = 1.125
"""The chosen breadth exceeds the least sufficient one by at most this factor."""


def near_lists(index: Any, side: Side, parameters: str, memory: int) -> Heads:
    """Score the candidates that the index proposes for these anchors; no bound is known for the others."""
    load_faiss().ParameterSpace().set_index_parameters(index, parameters)
    wanted, heads = side.size.wanted, list[Heads]()
    k = min(wanted + max(SLACK, wanted // 4), len(side.candidates))  # more than wanted, as an index misjudges some
    for part in (side.rows(slice(*rows)) for rows in portions(0, len(side.anchors), k, memory)):
        with able_to(f"search with {parameters!r}", FORM):
            near = index.search(np.ascontiguousarray(part.anchors, dtype=np.float32), k)[1]
        heads.append(rescored(part, near))
    return Heads(*(np.concatenate([getattr(one, each.name) for one in heads]) for each in fields(Heads)))


@dataclass(frozen=True)
class Indexed:
    """A search by an index for the recall `wanted`; without a folder `indexes` the index lasts as long as the store."""

    name: str
    wanted: float
    indexes: Path | None
    times: Mapping[Direction, int] = field(default_factory=lambda: {"i2t": 0, "t2i": 0})
    """How often each direction was searched more widely because its recall fell short."""

    def backend(self) -> Backend:
        about = _ABOUT.get(self.name, ABOUT_FACTORY)
        return Backend(self.name, about, self._steps, guarantee=self._guarantee, widened=self._widened)

    def _widened(self, problem: Problem, store: Store, short: Sequence[Direction]) -> Backend | None:
        """Search directions again, more widely; None if one cannot be widened further."""
        for direction in short:
            *_, breadth, widest = self._recipe(direction, problem)
            is_widest = self._index(direction, store)[1] == f"{breadth}={widest}"
            if not breadth or is_widest or self.times[direction] == MOST_TIMES:
                return None
        return replace(self, times={**self.times, **{d: self.times[d] + 1 for d in short}}).backend()

    def _recipe(self, direction: Direction, problem: Problem) -> Recipe:
        if self.name in RECIPES:
            return RECIPES[self.name](problem.size(direction).candidates)
        factory, _, parameters = self.name.removeprefix(FAISS_PREFIX).partition("|")
        return Recipe(factory, parameters)

    def _label(self, direction: Direction) -> str:
        """Name the breadth, which depends on the wanted recall and on how often it was widened."""
        return f"{direction}-{self.wanted:g}+{self.times[direction]}"

    def _index(self, direction: Direction, store: Store) -> tuple[Path, str]:
        """Return the folder of the index and its search parameters."""
        (row,) = store.read(f"index-{self._label(direction)}").to_pylist()
        return Path(row["path"]), row["parameters"]

    def _steps(self, problem: Problem) -> Steps[Problem]:
        sides = [(direction, self._label(direction)) for direction in problem.directions]
        for direction, _ in sides:  # refuse a wrong factory string before anything is read
            empty_index(self._recipe(direction, problem), problem.images.shape[1])
        return [
            [Unit((f"index-{label}",), partial(self._prepare, direction)) for direction, label in sides],
            [
                Unit((unit_name(label, *rows),), partial(self._search, direction, slice(*rows)))
                for direction, label in sides
                for rows in blocks(problem.size(direction).anchors, ANCHOR_ROWS)
            ],
            [Unit((f"recall-{label}",), partial(self._recall, direction)) for direction, label in sides],
        ]

    def _prepare(self, direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
        """Build the index of the candidates unless it exists, and choose the breadth of its searches.

        Breadth and recall are measured on different samples of anchors. Each wider breadth is chosen on a new sample,
        twice as large, never on the one whose recall fell short.
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
            index, last = opened_index(folder), exact_heads(sample).scores[:, -1:]

            def measure(breadth: int) -> np.ndarray:
                return (near_lists(index, sample, f"{recipe.breadth}={breadth}", problem.memory).scores >= last).mean(
                    axis=1
                )

            named = f"{recipe.factory}|{recipe.breadth}"
            chosen = choose_breadth(named, recipe.widest, measure, self.wanted, count, beyond)
            parameters = f"{recipe.breadth}={chosen}"
        return [pa.table({"path": [str(folder)], "parameters": [parameters]})]

    def _built(self, direction: Direction, problem: Problem, store: Store) -> Path:
        root = store.path / "indexes" if self.indexes is None and isinstance(store, Folder) else self.indexes
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
        return [lists_table(side, near_lists(opened_index(folder), side, parameters, problem.memory), rows.start)]

    def _recall(self, direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
        """Measure the recall of the written lists on a sample of anchors, a new one for each breadth."""
        whole, times = problem[direction], self.times[direction]
        count, scores = len(whole.anchors), []
        sample = sampled_rows(count, MEASURED_ON, seed=2 * times)
        for start, stop in blocks(count, ANCHOR_ROWS):
            if len(here := sample[(sample >= start) & (sample < stop)] - start):
                scores.append(from_arrow(store.read(unit_name(self._label(direction), start, stop))).scores[here])
        last = exact_heads(whole.rows(sample)).scores[:, -1:]  # a score that reaches it belongs to the true list
        listed = np.concatenate(scores)
        recall = float((np.where(np.isnan(listed), -np.inf, listed) >= last).mean())  # the NaN of padding
        folder, parameters = self._index(direction, store)
        factory = self._recipe(direction, problem).factory
        index = {"factory": factory, "parameters": parameters, "key": folder.name}
        guarantee = {
            "guarantee": "approximate",
            "recall": round(recall, 6),
            "recall_interval": [round(end, 6) for end in wilson_interval(recall, len(sample), count)],
            "recall_anchors": len(sample),
            "index": {**index, "widened": times} if times else index,
        }
        return [pa.table({"guarantee": [json.dumps(guarantee)]})]

    def _guarantee(self, store: Store, direction: Direction) -> dict[str, Any]:
        return dict(json.loads(store.read(f"recall-{self._label(direction)}")["guarantee"][0].as_py()))


def wilson_interval(recall: float, sampled: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval (1927), with anchors as trials.

        (p + z²/2n ± z sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n)

    A fraction of a list varies less than a Bernoulli trial with the same mean, so the interval is wide enough however
    the entries of a list depend on each other. If all `count` anchors were sampled, the recall is known exactly.

    >>> [round(end, 4) for end in wilson_interval(0.96, 512, 10_000)]
    [0.9393, 0.9738]
    """
    if sampled == count:
        return recall, recall
    z2 = NORMAL_QUANTILE**2 / sampled
    centre, half = recall + z2 / 2, math.sqrt(z2 * recall * (1 - recall) + z2**2 / 4)
    return max(0.0, (centre - half) / (1 + z2)), min(1.0, (centre + half) / (1 + z2))


Measure = Callable[[int], Float[np.ndarray, " sample"]]
"""Maps a breadth to the fraction found of each sampled anchor's list."""


def choose_breadth(index: str, widest: int, measure: Measure, wanted: float, count: int, beyond: int = 0) -> int:
    """Find roughly the least breadth above `beyond` whose recall is `wanted` with high confidence.

    Breadths are doubled until one suffices; bisection then narrows the last step.

    Raises:
        ValueError: if the widest is not enough.
    """
    recall = 0.0

    def is_enough(breadth: int) -> bool:
        nonlocal recall
        fractions = measure(breadth)
        recall, sampled = float(fractions.mean()), len(fractions)
        logger.info("%s=%d finds %.2f%% on %d anchors", index, breadth, 100 * recall, sampled)
        if sampled == count:
            return recall >= wanted
        error = float(fractions.std(ddof=1)) * math.sqrt((count - sampled) / (count - 1) / sampled)
        return recall - _RECALL_DEVIATIONS * error >= wanted

    narrow, wide = beyond, min(max(beyond + 1, math.ceil(STEP * beyond)), widest)
    while not is_enough(wide):
        if wide == widest:
            raise ValueError(
                f"{index}={wide} finds {recall:.1%} at its widest, but {wanted:.1%} is needed to allow for sampling "
                "errors; lower the recall floor, or search exactly."
            )
        narrow, wide = wide, min(2 * wide, widest)
    while wide > max(narrow + 1, STEP * narrow):
        between = (narrow + wide) // 2
        narrow, wide = (narrow, between) if is_enough(between) else (between, wide)
    return wide
