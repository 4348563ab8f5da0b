"""Units on slots of any speed, in a simulated cluster: sizes, rates, slow and failing slots."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from aoq.pipeline.search.cluster.dispatch import LEAST, SECONDS, Feed, Slot, dispatch
from aoq.pipeline.search.rows import RowStep
from aoq.pipeline.search.store import Memory
from aoq.pipeline.search.units import Unit


class Simulated:
    """Slots that do a number of rows a second each, on a clock that stands still meanwhile."""

    def __init__(self, **speeds):
        self.speeds, self.now, self.running, self.did, self.stopped = speeds, 0.0, {}, [], []

    def slots(self):
        return [Slot(node) for node in self.speeds]

    def start(self, piece, slot):
        handle = object()
        speed = self.speeds[slot.node]
        self.running[handle] = (self.now + piece.rows / speed if speed else float("inf"), piece, slot, self.now)
        return handle

    def wait(self, handles, seconds):
        ends = {handle: self.running[handle][0] for handle in handles}
        first = min(ends.values())
        self.now = first if seconds is None else min(first, self.now + seconds)
        return [handle for handle, end in ends.items() if end <= self.now]

    def seconds(self, handle):
        end, piece, slot, began = self.running.pop(handle)
        self.did.append((slot.node, piece.cut("cpu").outputs[0], piece.rows))
        return end - began

    def stop(self, handles):
        self.stopped += [self.running.pop(handle)[2].node for handle in handles]

    def run(self, step, store=None):
        done = []
        dispatch(Feed(step, store or Memory()), self, done.append, lambda: self.now)
        return done


def rows(count, most=100_000):
    return RowStep(("i2t",), count, most, lambda *_: [])


def covered(cluster):
    spans = sorted(tuple(map(int, name.split("-")[1:])) for _, name, _ in cluster.did)
    assert all(stop == start for (_, stop), (start, _) in pairwise(spans))
    return spans[0][0], spans[-1][1]


def test_first_units_are_small_and_say_how_large_the_next_are():
    cluster = Simulated(slow=10, fast=1000)
    assert sum(cluster.run(rows(400_000))) == 400_000
    assert covered(cluster) == (0, 400_000)
    sizes = {node: [count for name, _, count in cluster.did if name == node] for node in ("slow", "fast")}
    assert sizes["slow"][:2] == [LEAST, int(10 * SECONDS)]
    assert sizes["fast"][:2] == [LEAST, int(1000 * SECONDS)]
    assert cluster.now < 1.2 * 400_000 / 1010
    assert sizes["fast"][-1] < sizes["fast"][1]  # little is left, and shared


def test_no_unit_exceeds_what_memory_allows():
    cluster = Simulated(one=1e6)
    assert set(cluster.run(rows(2000, most=300))) == {300, 200}


def test_what_is_done_is_not_handed_out():
    step, store = rows(3000), Memory()
    for start, stop in ((0, 700), (1000, 2900)):
        store.write(f"i2t-{start:09d}-{stop:09d}", pa.table({"anchor_id": [start]}))
    cluster = Simulated(one=100)
    cluster.run(step, store)
    assert sorted(name for _, name, _ in cluster.did) == ["i2t-000000700-000001000", "i2t-000002900-000003000"]


def test_a_slot_that_hangs_is_passed_by_at_the_end():
    cluster = Simulated(one=100, hung=0, other=120)
    assert sum(cluster.run(rows(20_000))) == 20_000
    assert covered(cluster) == (0, 20_000)
    assert cluster.stopped == ["hung"]


def test_a_unit_that_is_nearly_as_fast_elsewhere_is_not_done_twice():
    cluster = Simulated(one=100, other=80)
    cluster.run(rows(20_000))
    assert cluster.stopped == []
    assert len({name for _, name, _ in cluster.did}) == len(cluster.did)


def test_units_of_their_own_are_done_once_each():
    units = [Unit((f"unit-{n}",), lambda *_: []) for n in range(7)]
    cluster = Simulated(one=1, other=3)
    assert cluster.run(units) == [1] * 7
    assert sorted(name for _, name, _ in cluster.did) == [f"unit-{n}" for n in range(7)]


def test_an_error_ends_the_run_and_stops_the_others():
    class Failing(Simulated):
        def seconds(self, handle):
            raise ValueError("this unit cannot be")

    cluster = Failing(one=100, other=1)
    with pytest.raises(ValueError, match="this unit cannot be"):
        cluster.run(rows(20_000))
    assert cluster.stopped == ["other"]
