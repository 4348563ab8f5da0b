"""Communities of a graph, grown greedily up to a size."""

from __future__ import annotations

from typing import Any, no_type_check

import numpy as np
from jaxtyping import Int32
from numba import njit

from aoq.pipeline.batches.graph import Graph

Communities = Int32[np.ndarray, " nodes"]
"""The number of each node's community."""


def communities(graph: Graph, size: int, rng: np.random.Generator) -> Communities:
    """Grow communities of at most `size` nodes, each from a free node at random.

    A community takes the free node n with the most edges into it, relative to its edges to other free nodes:

        argmax over n of  w(n, community) / (1 + w(n, free))

    So a node that no other community could take is not left behind. METIS, which minimises the edges cut over all parts
    at once, keeps no more edges in small communities and takes several times as long (benchmarks/batches.py).
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
