"""The backends faiss:FACTORY: an index of FAISS of any kind; recall is measured on a sample."""

from __future__ import annotations

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64, Integer, UInt8

from aoq.pipeline.search.brute_force import load_faiss
from aoq.pipeline.search.exact import exact_heads
from aoq.pipeline.search.lists import from_arrow, lists_table
from aoq.pipeline.search.problem import Direction, Problem, Side, blocks, offsets_of
from aoq.pipeline.search.proposals import Heads, Proposals, heads
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.units import Backend, Steps, Unit, unit_name

FACTORY = "faiss:"
BLOCK = 4096
"""Anchors a unit."""
ADDED = 65536
"""Vectors that an index takes at a time."""
SLACK = 32
"""How many candidates beyond h and the positives are asked for: those that an index misjudges."""
SAMPLED = 512
"""Anchors of each direction that are searched exactly too."""
PIECE = 2**26
_LOADED: WeakKeyDictionary[Store, dict[str, Any]] = WeakKeyDictionary()


def faiss_index(description: str) -> Backend:
    """The backend that asks an index of FAISS; `description` is a factory string, after "|" search parameters."""
    return Backend(
        f"{FACTORY}{description}",
        'approximate, by an index of FAISS such as "faiss:IVF256,Flat|nprobe=32", recall measured on a sample',
        partial(approximate_steps, description),
        guarantee=measured_recall,
    )


def approximate_steps(description: str, problem: Problem) -> Steps:
    empty_index(description, problem.images.shape[1])  # a wrong description ends here
    searches = {
        direction: [
            Unit((unit_name(direction, *rows),), partial(_search, direction, description, *rows))
            for rows in blocks(problem.size(direction).anchors, BLOCK)
        ]
        for direction in problem.directions
    }
    return [
        [Unit((f"index-{direction}",), partial(_index, direction, description)) for direction in problem.directions],
        [unit for units in searches.values() for unit in units],
        [Unit((f"recall-{direction}",), partial(_recall, direction)) for direction in problem.directions],
    ]


def measured_recall(store: Store, direction: Direction) -> dict[str, Any]:
    """The fraction of the h best negatives that the lists of sampled anchors have, and how many anchors these are."""
    recall = store.read(f"recall-{direction}")["recall"].to_numpy()
    return {"guarantee": "approximate", "recall": round(float(recall.mean()), 6), "recall_anchors": len(recall)}


def _index(direction: Direction, description: str, problem: Problem, store: Store) -> list[pa.Table]:
    content = build_index(description, problem[direction].candidates)
    pieces = [content[start:stop].tobytes() for start, stop in blocks(len(content), PIECE)]
    return [pa.table({"piece": pa.array(pieces, pa.large_binary())})]


def _search(
    direction: Direction, description: str, start: int, stop: int, problem: Problem, store: Store
) -> list[pa.Table]:
    side = problem[direction].rows(np.arange(start, stop))
    index = _index_in(store, f"index-{direction}")
    _, ids = search_index(index, description, side.anchors, min(side.wanted + SLACK, len(side.candidates)))
    return [lists_table(side, near_heads(side, ids), start)]


def near_heads(side: Side, ids: Integer[np.ndarray, "anchors k"]) -> Heads:
    """Exact scores and order of what was found; no bound on what was not."""
    found = ids >= 0
    offsets = offsets_of(found.sum(1))
    none_better = np.zeros(found.sum(), dtype=np.float32)  # an index may compress: of what it found, all is scored
    return heads(side, Proposals(offsets, ids[found], none_better, np.full(len(ids), np.inf), error=0.0))


def _index_in(store: Store, name: str) -> Any:
    """The index, loaded once for as long as its store is there."""
    loaded = _LOADED.setdefault(store, {})
    if name not in loaded:
        pieces = [np.frombuffer(piece.as_buffer(), np.uint8) for piece in store.read(name)["piece"]]
        loaded[name] = load_faiss().deserialize_index(np.concatenate(pieces))
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


def empty_index(description: str, dimensions: int) -> Any:
    """Make an untrained index; after `|` stand search parameters as FAISS's ParameterSpace names them."""
    faiss = load_faiss()
    factory, _, parameters = description.partition("|")
    try:
        index = faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
        if parameters:
            faiss.ParameterSpace().set_index_parameters(index, parameters)
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rpartition("Error: ")[2]
        raise ValueError(
            f"FAISS makes no index of {description!r} in {dimensions} dimensions ({reason}); "
            'give a factory string, with parameters after "|" if need be: "faiss:IVF256,Flat|nprobe=32".'
        ) from None
    return index


def build_index(description: str, vectors: Float[np.ndarray, "items D"]) -> UInt8[np.ndarray, " bytes"]:
    """Train an index on all vectors, add all of them, and serialise it."""
    index = empty_index(description, vectors.shape[1])
    if not index.is_trained:
        try:
            index.train(np.ascontiguousarray(vectors, dtype=np.float32))
        except RuntimeError as error:
            reason = str(error).splitlines()[0].rpartition("Error: ")[2]
            raise ValueError(
                f"FAISS cannot train {description!r} on {len(vectors)} vectors ({reason}); ask for fewer clusters."
            ) from None
    for start in range(0, len(vectors), ADDED):
        index.add(np.ascontiguousarray(vectors[start : start + ADDED], dtype=np.float32))
    return load_faiss().serialize_index(index)


def search_index(
    index: Any, description: str, anchors: Float[np.ndarray, "anchors D"], k: int
) -> tuple[Float[np.ndarray, "anchors k"], Int64[np.ndarray, "anchors k"]]:
    """Find up to k near candidates of each anchor; where an index finds fewer, ids of -1 fill the row."""
    parameters = description.partition("|")[2]
    if parameters:
        load_faiss().ParameterSpace().set_index_parameters(index, parameters)
    return index.search(np.ascontiguousarray(anchors, dtype=np.float32), k)
