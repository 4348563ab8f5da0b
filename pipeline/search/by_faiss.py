"""FAISS backends: faiss-flat, a brute-force search, and faiss:FACTORY, an index of any kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from aoq.pipeline.search.brute_force import load_faiss
from aoq.pipeline.search.exact import exact_heads
from aoq.pipeline.search.lists import from_arrow, lists_table
from aoq.pipeline.search.problem import Direction, Problem, Side, blocks
from aoq.pipeline.search.proposals import Heads, near_heads
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.units import Backend, Steps, Unit, unit_name

FACTORY = "faiss:"
BLOCK = 4096
"""Anchors per unit; a crash loses at most one unit."""
ADDED = 65536
"""Vectors added to an index at a time."""
SLACK = 32
"""Candidates requested beyond h and the positives, for those that an index misjudges."""
SAMPLED = 512
"""Anchors of each direction that are also searched exactly."""
PIECE = 2**26
MOST = 2**31 - 1
_LOADED: WeakKeyDictionary[Store, dict[str, Any]] = WeakKeyDictionary()


Find = Callable[[Side, Direction, Store], Heads]


def _searches(problem: Problem, find: Find) -> list[Unit[Problem]]:
    return [
        Unit((unit_name(direction, *rows),), partial(_search, find, direction, *rows))
        for direction in problem.directions
        for rows in blocks(problem.size(direction).anchors, BLOCK)
    ]


def _search(find: Find, direction: Direction, start: int, stop: int, problem: Problem, store: Store) -> list[pa.Table]:
    side = problem[direction].rows(np.arange(start, stop))
    return [lists_table(side, find(side, direction, store), start)]


def _flat_steps(problem: Problem) -> Steps[Problem]:
    load_faiss()  # fails here, before anything is read, where FAISS is missing
    return [_searches(problem, lambda side, *_: exact_heads(side))]


def _brute_force_costs(problem: Problem) -> Mapping[str, float]:
    pairs = len(problem.images) * len(problem.captions) * len(problem.directions)
    return {"brute-force search and lists": 2.0 * problem.images.shape[1] * pairs}


FAISS_FLAT = Backend(
    "faiss-flat",
    "exact, a brute-force search for each direction by FAISS, on GPUs if any",
    _flat_steps,
    costs=_brute_force_costs,
)


def faiss_index(description: str) -> Backend:
    """Make a backend from FAISS's factory string `description`; search parameters follow a "|"."""
    return Backend(
        f"{FACTORY}{description}",
        'approximate, by an index of FAISS such as "faiss:IVF256,Flat|nprobe=32", recall measured on a sample',
        partial(_index_steps, description),
        guarantee=_measured_recall,
    )


def _index_steps(description: str, problem: Problem) -> Steps[Problem]:
    _empty_index(description, problem.images.shape[1])  # a wrong description fails here
    return [
        [Unit((f"index-{direction}",), partial(_index, direction, description)) for direction in problem.directions],
        _searches(problem, partial(_ask_index, description)),
        [Unit((f"recall-{direction}",), partial(_recall, direction)) for direction in problem.directions],
    ]


def _measured_recall(store: Store, direction: Direction) -> dict[str, Any]:
    """Recall at h of the lists of sampled anchors, and the number of these anchors."""
    recall = store.read(f"recall-{direction}")["recall"].to_numpy()
    return {"guarantee": "approximate", "recall": round(float(recall.mean()), 6), "recall_anchors": len(recall)}


def _index(direction: Direction, description: str, problem: Problem, store: Store) -> list[pa.Table]:
    """Train an index on all candidates, add them all, and serialise it."""
    vectors = problem[direction].candidates
    index = _empty_index(description, vectors.shape[1])
    if not index.is_trained:
        try:
            index.train(np.ascontiguousarray(vectors, dtype=np.float32))
        except RuntimeError as error:
            raise ValueError(
                f"FAISS cannot train {description!r} on {len(vectors)} vectors ({_reason(error)}); ask for fewer "
                "clusters."
            ) from None
    for start, stop in blocks(len(vectors), ADDED):
        index.add(np.ascontiguousarray(vectors[start:stop], dtype=np.float32))
    content = load_faiss().serialize_index(index)
    pieces = [content[start:stop].tobytes() for start, stop in blocks(len(content), PIECE)]
    return [pa.table({"piece": pa.array(pieces, pa.large_binary())})]


def _ask_index(description: str, side: Side, direction: Direction, store: Store) -> Heads:
    index = _loaded(description, store, f"index-{direction}")
    _, ids = index.search(side.anchors, min(side.wanted + SLACK, len(side.candidates)))  # -1 fills short rows
    return near_heads(side, ids)


def _loaded(description: str, store: Store, name: str) -> Any:
    """Load the index, once for as long as its store exists."""
    loaded = _LOADED.setdefault(store, {})
    if name not in loaded:
        pieces = [np.frombuffer(piece.as_buffer(), np.uint8) for piece in store.read(name)["piece"]]
        loaded[name] = load_faiss().deserialize_index(np.concatenate(pieces))
        _set_parameters(loaded[name], description)
    return loaded[name]


def _recall(direction: Direction, problem: Problem, store: Store) -> list[pa.Table]:
    whole = problem[direction]
    count = len(whole.anchors)
    rows = np.sort(np.random.default_rng(0).choice(count, min(SAMPLED, count), replace=False))
    last = exact_heads(whole.rows(rows)).scores[:, -1:]
    found = []
    for start, stop in blocks(count, BLOCK):
        lists = from_arrow(store.read(unit_name(direction, start, stop)))
        found.append(lists.scores[rows[(rows >= start) & (rows < stop)] - start])
    return [pa.table({"anchor_id": rows, "recall": (np.concatenate(found) >= last).mean(axis=1)})]


def _empty_index(description: str, dimensions: int) -> Any:
    """Make an untrained index; search parameters follow `|`, named as in FAISS's ParameterSpace."""
    faiss = load_faiss()
    try:
        index = faiss.index_factory(dimensions, description.partition("|")[0], faiss.METRIC_INNER_PRODUCT)
        _set_parameters(index, description)
    except RuntimeError as error:
        raise ValueError(
            f"FAISS makes no index of {description!r} in {dimensions} dimensions ({_reason(error)}); "
            'give a factory string, with parameters after "|" if need be: "faiss:IVF256,Flat|nprobe=32".'
        ) from None
    return index


def _set_parameters(index: Any, description: str) -> None:
    if parameters := description.partition("|")[2]:
        # FAISS accepts any number and casts it to an integer of its own.
        for parameter in parameters.replace(";", ",").split(","):
            number = parameter.partition("=")[2]
            if not re.fullmatch(r"\d+(\.\d+)?", number) or float(number) > MOST:
                raise ValueError(f"{description!r} sets {parameter!r}; parameters are NAME=N, with N from 0 to {MOST}.")
        load_faiss().ParameterSpace().set_index_parameters(index, parameters)


def _reason(error: RuntimeError) -> str:
    return str(error).splitlines()[0].rpartition("Error: ")[2]
