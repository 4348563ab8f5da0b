"""Order of an epoch's pairs: the pairs of a batch are each other's hard negatives.

As in B3 (Thirukovalluru et al., NeurIPS 2025), a teacher's ranks make a sparse graph, which is split into communities,
and a batch consists of whole communities. Here both directions of a table are in the graph. An epoch is split into
passes in which each image occurs once, so that its captions never share a batch. The negatives that become edges are
drawn anew in each epoch, so batches differ. Pairs that match, or are suspected to, are moved to other batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, no_type_check

import numpy as np
from jaxtyping import Int32, Int64, Integer

from aoq.pipeline.batches.lists import MeetingLists
from aoq.pipeline.extras import compiled
from aoq.pipeline.search.positives import group_offsets
from aoq.pipeline.search.problem import READ_ROWS, blocks

MOST_EDGES = 10
"""Edges per list in a pass."""
COMMUNITY = 32
_TRIES = 50
"""Places tried for a pair that is moved to another batch."""
_PairRows = Int64[np.ndarray, " rows"]
"""Row numbers of pairs."""


def mined_order(
    lists: MeetingLists, size: int, epoch: int, *, seed: int = 0, community: int = COMMUNITY
) -> Int32[np.ndarray, " pairs"]:
    """Order the rows of all pairs, batch after batch of `size`; the last may be short.

    Batches are made of communities of about `community` mutual hard negatives.
    """
    rng, wanted = np.random.default_rng([seed, epoch]), size // max(1, round(size / community))
    full, rest = [], []
    for rows in passes(lists.pairs[:, 0], rng):
        graph = pass_graph(lists, rows, most=MOST_EDGES, rng=rng)
        packed = rows[pack_communities(communities(graph, wanted, rng), wanted, size, rng)]
        stop = len(packed) // size * size
        full.append(packed[:stop])
        rest.append(packed[stop:])
    ends = rng.permutation(np.concatenate(rest))
    stop = len(ends) // size * size
    batches = np.concatenate([*full, ends[:stop]]).reshape(-1, size)
    ordered = np.concatenate([rng.permutation(batches).ravel(), ends[stop:]])
    return keep_apart(lists, ordered, size, rng).astype(np.int32)


@dataclass(frozen=True)
class Graph:
    """Undirected graph; the neighbours of node n are `neighbours[offsets[n]:offsets[n + 1]]`."""

    offsets: Int64[np.ndarray, " nodes_and_one"]
    neighbours: Int32[np.ndarray, " ends"]
    weights: Int32[np.ndarray, " ends"]


def passes(images: Int32[np.ndarray, " pairs"], rng: np.random.Generator) -> list[_PairRows]:
    """Split pairs so that each image occurs at most once in a part, its pairs in random order.

    >>> [len(rows) for rows in passes(np.array([4, 4, 7], np.int32), np.random.default_rng(0))]
    [2, 1]
    """
    order = rng.permutation(len(images))
    order = order[np.argsort(images[order], kind="stable")]
    counts = np.bincount(images)
    places = np.arange(len(images)) - np.repeat(group_offsets(counts)[:-1], counts)
    return [rng.permutation(order[places == place]) for place in range(int(counts.max(initial=0)))]


def pass_graph(lists: MeetingLists, rows: _PairRows, *, most: int, rng: np.random.Generator) -> Graph:
    """Weigh the edge of pairs (i, c) and (j, d) by the count of listed negatives: d of i, j of c, c of j, i of d.

    Each list gives at most `most` negatives of the pass, drawn at random.
    """
    nodes, edges = len(rows), []
    images, captions = lists.pairs[rows].T
    for listed, anchors, others, candidates in (
        (lists.i2t, images, lists.t2i, captions),
        (lists.t2i, captions, lists.i2t, images),
    ):
        node_of = np.full(len(others), -1)
        node_of[candidates] = np.arange(nodes)
        for start, stop in blocks(nodes, READ_ROWS):
            edges.append(_draw_edges(listed[anchors[start:stop]], start, node_of, most, rng))
    first, second = np.concatenate(edges, axis=1)
    keys, weights = np.unique(np.minimum(first, second) * nodes + np.maximum(first, second), return_counts=True)
    low, high = keys // nodes, keys % nodes
    starts, stops = np.concatenate([low, high]), np.concatenate([high, low])
    order = np.lexsort((stops, starts))
    return Graph(
        group_offsets(np.bincount(starts, minlength=nodes)),
        stops[order].astype(np.int32),
        np.tile(weights, 2)[order].astype(np.int32),
    )


def _draw_edges(
    ids: Int32[np.ndarray, "anchors h"], first: int, node_of: _PairRows, most: int, rng: np.random.Generator
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


def communities(graph: Graph, size: int, rng: np.random.Generator) -> Int32[np.ndarray, " nodes"]:
    """Return the number of each node's community; they have at most `size` nodes, and grow from free ones at random.

    A community takes the free node n with the most edges into it, relative to its edges to other free nodes:

        argmax over n of  w(n, community) / (1 + w(n, free))

    So a node that only this community could take is not left behind. METIS, which minimises the edges cut over all
    parts at once, keeps no more edges in small communities and takes several times as long (benchmarks/batches.py).
    """
    return _grow(graph.offsets, graph.neighbours, graph.weights, rng.permutation(len(graph.offsets) - 1), size)


@compiled()
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


def pack_communities(
    numbers: Int32[np.ndarray, " nodes"], wanted: int, size: int, rng: np.random.Generator
) -> Int64[np.ndarray, " nodes"]:
    """Pack nodes into batches of `size`, each with as many communities of the `wanted` size as fit, at random.

    Smaller communities follow, the largest first; the last of these fill the places that whole communities leave.
    """
    sizes = np.bincount(numbers)
    rank = np.lexsort((rng.random(len(sizes)), -sizes)).argsort()  # the largest communities first, equal ones at random
    order = np.argsort(rank[numbers], kind="stable")
    each, spare = divmod(size, wanted)
    batches = min(int((sizes == wanted).sum()) // each, len(numbers) // size)
    whole, loose = order[: batches * each * wanted], order[batches * each * wanted :]
    last = len(loose) - batches * spare
    filled = np.concatenate([whole.reshape(batches, each * wanted), loose[last:].reshape(batches, spare)], axis=1)
    return np.concatenate([filled.ravel(), loose[:last]])


def keep_apart(
    lists: MeetingLists, order: Integer[np.ndarray, " pairs"], size: int, rng: np.random.Generator
) -> Integer[np.ndarray, " pairs"]:
    """Exchange pairs that match another of their batch with pairs of other batches, so that neither matches any.

    A pair without such an exchange stays, as in a batch as large as the data.
    """
    order = order.copy()
    for place in meetings(lists, order, size).tolist():
        if not _would_match(lists, order, place, order[place], size):
            continue  # the pair that it matched was moved
        for other in rng.integers(len(order), size=_TRIES).tolist():
            exchanged = (place, order[other]), (other, order[place])
            if other // size != place // size and not any(_would_match(lists, order, *one, size) for one in exchanged):
                order[[place, other]] = order[[other, place]]
                break
    return order


def meetings(lists: MeetingLists, order: Integer[np.ndarray, " pairs"], size: int) -> Int64[np.ndarray, " places"]:
    """Find the places of pairs that match an earlier pair of their batch."""
    places = []
    for start in range(0, len(order), size):
        row, column = np.nonzero(lists.matching_cells(lists.pairs[order[start : start + size]]))
        places.append(start + np.maximum(row, column))
    return np.unique(np.concatenate(places))


def _would_match(
    lists: MeetingLists, order: Integer[np.ndarray, " pairs"], place: int, pair: np.int64, size: int
) -> bool:
    """Return whether a pair at this place would match another of the batch."""
    start = place // size * size
    others = np.delete(order[start : start + size], place - start)
    own, (images, captions) = lists.pairs[[pair]], lists.pairs[others].T
    return bool((lists.match(own[:, 0], captions) | lists.match(images, own[:, 1])).any())
