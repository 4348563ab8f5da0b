"""Compare mined batches with METIS's partition of the same graph and with random batches: content and cost.

    pip install pymetis
    python benchmarks/batches.py TABLE --batch-size 64 --community 32

For each pass of an epoch both get the same graph. Inside: the fraction of the edges' weight within communities; METIS's
have nearly equal size, ours at most that size. Then both are packed into batches by the same function. Listed: the
number of an anchor's listed captions in its batch; rank: that of the hardest, median.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)  # beside this file, `pipeline` is a benchmark

import click
import numpy as np
import pymetis
from rich.console import Console
from rich.table import Table

from aoq.pipeline.batches import order
from aoq.pipeline.batches.lists import measure_meetings, meeting_lists
from aoq.pipeline.batches.order import Graph
from aoq.pipeline.data.batches import epoch_order
from aoq.pipeline.tables.table import read_table


class Timed:
    """A partition, its seconds, and the weight of edges inside and in total."""

    def __init__(self, partition) -> None:  # type: ignore[no-untyped-def]
        self.partition, self.seconds, self.weights = partition, 0.0, np.zeros(2)

    def __call__(self, graph: Graph, size: int, rng: np.random.Generator) -> np.ndarray:
        began = time.perf_counter()
        found = self.partition(graph, size, rng)
        self.seconds += time.perf_counter() - began
        starts = np.repeat(found, np.diff(graph.offsets))
        self.weights += graph.weights[starts == found[graph.neighbours]].sum(), graph.weights.sum()
        return found


def metis(graph: Graph, size: int, rng: np.random.Generator) -> np.ndarray:
    options = pymetis.Options()
    options.seed = int(rng.integers(2**31 - 1))
    adjacency = pymetis.CSRAdjacency(graph.offsets, graph.neighbours.astype(np.int64))
    parts = max(1, round((len(graph.offsets) - 1) / size))
    cut = pymetis.part_graph(parts, adjacency, eweights=graph.weights.astype(np.int64), options=options)
    return np.asarray(cut.vertex_part, dtype=np.int32)


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--batch-size", default=64, show_default=True)
@click.option("--community", default=32, show_default=True)
def main(table: Path, batch_size: int, community: int) -> None:
    read = read_table(table)
    lists = meeting_lists(read, read.positives)
    ours = order.communities
    rng = np.random.default_rng(0)
    ours(order.pass_graph(lists, np.arange(min(100, len(lists.pairs))), most=10, rng=rng), 8, rng)  # numba compiles
    rows = Table("", "communities, s", "epoch, s", "inside", "listed", "rank", "without", box=None)
    for name, partition in (("ours", ours), ("METIS", metis)):
        order.communities = timed = Timed(partition)
        began = time.perf_counter()
        found = order.mined_order(lists, batch_size, 0, community=community)
        seconds = time.perf_counter() - began
        inside = f"{timed.weights[0] / timed.weights[1]:.1%}"
        rows.add_row(name, f"{timed.seconds:.1f}", f"{seconds:.1f}", inside, *met(read, lists, found, batch_size))
    at_random = epoch_order(len(lists.pairs), seed=0, epoch=0)
    rows.add_row("random", "", "", "", *met(read, lists, at_random, batch_size))
    Console().print(rows)


def met(read, lists, found, size) -> list[str]:  # type: ignore[no-untyped-def]
    batches = np.split(lists.pairs[found], range(size, len(found), size))
    one = measure_meetings(read, lists, batches, np.random.default_rng(0)).directions["i2t"]
    return [f"{one.listed:.2f}", f"{one.hardest_rank:.0f}", f"{one.none_listed:.1%}"]


if __name__ == "__main__":
    main()
