"""The graph of pairs that are each other's hard negatives, and its communities, grown greedily up to a size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Int32, Int64
from numba import njit

from aoq.pipeline.batches.lists import MeetingLists
from aoq.pipeline.search.positives import offsets_of
from aoq.pipeline.search.problem import BLOCK, blocks

PairRows = Int64[np.ndarray, " rows"]
"""Row numbers of pairs."""
Communities = Int32[np.ndarray, " nodes"]
"""The number of each node's community."""


@dataclass(frozen=True)
class Graph:
    """Undirected graph; the neighbours of node n are `neighbours[offsets[n]:offsets[n + 1]]`."""

    offsets: Int64[np.ndarray, " nodes_and_one"]
    neighbours: Int32[np.ndarray, " ends"]
    weights: Int32[np.ndarray, " ends"]

    def __len__(self) -> int:
        return len(self.offsets) - 1


def passes(images: Int32[np.ndarray, " pairs"], rng: np.random.Generator) -> list[PairRows]:
    """Split pairs so that each image occurs at most once in a part, its pairs in random order.

    >>> [len(rows) for rows in passes(np.array([4, 4, 7], np.int32), np.random.default_rng(0))]
    [2, 1]
    """
    order = rng.permutation(len(images))
    order = order[np.argsort(images[order], kind="stable")]
    counts = np.bincount(images)
    places = np.arange(len(images)) - np.repeat(offsets_of(counts)[:-1], counts)
    return [rng.permutation(order[places == place]) for place in range(int(counts.max(initial=0)))]


def pass_graph(lists: MeetingLists, rows: PairRows, *, most: int, rng: np.random.Generator) -> Graph:
    """Weigh the edge of pairs (i, c) and (j, d) by the count of listed negatives: d of i, j of c, c of j, i of d.

    Each list gives at most `most` negatives of the pass, drawn at random.
    """
    nodes, edges = len(rows), []
    images, captions = lists.pairs[rows].T
    for listed, anchors, candidates, count in (
        (lists.i2t, images, captions, lists.captions),
        (lists.t2i, captions, images, lists.images),
    ):
        node_of = np.full(count, -1)
        node_of[candidates] = np.arange(nodes)
        for start, stop in blocks(nodes, BLOCK):
            edges.append(_draw_edges(listed[anchors[start:stop]], start, node_of, most, rng))
    first, second = np.concatenate(edges, axis=1)
    keys, weights = np.unique(np.minimum(first, second) * nodes + np.maximum(first, second), return_counts=True)
    low, high = keys // nodes, keys % nodes
    starts, stops = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.lexsort((stops, starts))
    return Graph(
        offsets_of(np.bincount(starts, minlength=nodes)),
        stops[order].astype(np.int32),
        np.tile(weights, 2)[order].astype(np.int32),
    )


def _draw_edges(
    ids: Int32[np.ndarray, "anchors h"], first: int, node_of: PairRows, most: int, rng: np.random.Generator
) -> Int64[np.ndarray, "2 edges"]:
    """Draw edges from the nodes `first`, `first` + 1, ... to `most` nodes that each of their anchors lists."""
    own = np.arange(first, first + len(ids))
    nodes = np.where(ids >= 0, node_of[ids], -1)
    nodes[nodes == own[:, None]] = -1
    if nodes.shape[1] > most:
        chance = np.where(nodes >= 0, rng.random(nodes.shape, dtype=np.float32), 2)
        nodes = np.take_along_axis(nodes, np.argpartition(chance, most - 1, axis=1)[:, :most], axis=1)
    anchor, place = np.nonzero(nodes >= 0)
    return np.stack([own[anchor], nodes[anchor, place]])


def communities(graph: Graph, size: int, rng: np.random.Generator) -> Communities:
    """Grow communities of at most `size` nodes, each from a free node at random.

    A community takes the free node n with the most edges into it, relative to its edges to other free nodes:

        argmax over n of  w(n, community) / (1 + w(n, free))

    So no node is left behind that no other community could take. METIS, which minimises the edges cut over all parts at
    once, keeps no more edges in small communities and takes several times as long (benchmarks/batches.py).
    """
    return _grow(graph.offsets, graph.neighbours, graph.weights, rng.permutation(len(graph)), size)


@njit(nogil=True, cache=True)
@no_type_check
def _grow(offsets: Any, neighbours: Any, weights: Any, seeds: Any, size: int) -> Any:
    nodes = len(offsets) - 1
    community = np.full(nodes, -1, np.int32)
    inward = np.zeros(nodes, np.int64)  # the weight of a free node's edges into the community that grows
    front = np.empty(nodes, np.int64)  # the free nodes that have such edges
    number = -1
    for seed in seeds:
        if community[seed] >= 0:
            continue
        number += 1
        waiting, grown, newest = 0, 0, seed
        while True:
            community[newest] = number
            grown += 1
            if grown == size:
                break
            for edge in range(offsets[newest], offsets[newest + 1]):
                other = neighbours[edge]
                if community[other] < 0:
                    if inward[other] == 0:
                        front[waiting] = other
                        waiting += 1
                    inward[other] += weights[edge]
            best, place = 0.0, -1
            for index in range(waiting):
                node, outward = front[index], 1
                for edge in range(offsets[node], offsets[node + 1]):
                    if community[neighbours[edge]] < 0:
                        outward += weights[edge]
                share = inward[node] / outward
                if share > best:
                    best, place = share, index
            if place < 0:
                break
            newest = front[place]
            inward[newest] = 0
            waiting -= 1
            front[place] = front[waiting]
        for index in range(waiting):
            inward[front[index]] = 0
    return community
