"""Hand the units of a step to the slots of a cluster: large ones to fast slots, and each as late as can be.

A slot's first unit is small, and says how fast the slot is. From then on its units take about `SECONDS`, and fewer as
little is left. A slot that finds nothing left does a unit again that another is slow with; who is first wins, because
both write the same.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from aoq.pipeline.search.rows import Rows, RowStep
from aoq.pipeline.search.store import Store
from aoq.pipeline.search.units import Unit

SECONDS = 60.0
"""Time that a unit should take: what a lost process loses."""
LEAST = 512
"""Rows of a slot's first unit."""
SLOW = 3.0, 10.0
"""A unit is slow if it takes this many times what it would take elsewhere, and as many seconds more."""
LOOK = 2.0
"""Seconds after which idle slots look for slow units again."""

Opened = TypeVar("Opened")


class Slot(NamedTuple):
    """Room of a node for one unit at a time."""

    node: str
    gpu: bool = False


@dataclass(frozen=True, eq=False)
class Piece(Generic[Opened]):
    """A unit to be, and its share of the step; `cut` makes the unit for a device."""

    cut: Callable[[str], Unit[Opened]]
    rows: int = 1


class Feed(Generic[Opened]):
    """The units of a step that are still to be given out."""

    def __init__(self, step: Sequence[Unit[Opened]], store: Store) -> None:
        self._step = step
        self._gaps: deque[Rows] = deque(step.missing(store) if isinstance(step, RowStep) else ())
        self._units: deque[Unit[Opened]] = deque(() if isinstance(step, RowStep) else step)

    @property
    def rows(self) -> int:
        """Number of rows, or units, that are left."""
        return sum(stop - start for start, stop in self._gaps) + len(self._units)

    def take(self, rate: float | None, slots: int) -> Piece[Opened] | None:
        """Cut the next unit for a slot that does `rate` rows a second, one of so many; None if nothing is left."""
        if self._units:
            unit = self._units.popleft()
            return Piece(lambda device: unit)
        if not self._gaps:
            return None
        assert isinstance(self._step, RowStep)
        wanted = LEAST if rate is None else int(rate * SECONDS)
        shared = -(-self.rows // (2 * slots))
        count = min(self._step.most, max(LEAST, min(wanted, shared)))
        start, stop = self._gaps.popleft()
        if (end := start + count) < stop:
            self._gaps.appendleft((end, stop))
        return Piece(partial(self._step.unit, start, min(end, stop)), min(end, stop) - start)


@runtime_checkable
class Cluster(Protocol):
    """Slots that do units."""

    def slots(self) -> Sequence[Slot]:
        """Slots that are there now."""

    def start(self, piece: Piece[Any], slot: Slot) -> Any:
        """Begin a unit, and return a handle."""

    def wait(self, handles: Sequence[Any], seconds: float | None) -> Sequence[Any]:
        """Wait until a unit ended, or for a time, and return those that ended."""

    def seconds(self, handle: Any) -> float:
        """Time that an ended unit took; raises what it raised."""

    def stop(self, handles: Sequence[Any]) -> None:
        """Give up units, and wait until nothing writes for them any more."""


class _Begun(NamedTuple):
    piece: Piece[Any]
    slot: Slot
    at: float


def dispatch(
    feed: Feed[Any], cluster: Cluster, done: Callable[[int], None], clock: Callable[[], float] = time.monotonic
) -> None:
    """Do all units of a step; `done` is called with the rows of each."""
    begun: dict[Any, _Begun] = {}
    rates: dict[Slot, float] = {}
    try:
        while True:
            slots = cluster.slots()
            idle = list((Counter(slots) - Counter(each.slot for each in begun.values())).elements())
            for slot in idle:
                piece = feed.take(rates.get(slot), len(slots)) or _slow(begun, rates, slot, clock())
                if piece is not None:
                    begun[cluster.start(piece, slot)] = _Begun(piece, slot, clock())
            if not begun and not feed.rows:
                return
            for handle in cluster.wait(list(begun), LOOK if idle and not feed.rows else None):
                if handle not in begun:
                    continue
                piece, slot, _ = begun.pop(handle)
                rates[slot] = piece.rows / max(cluster.seconds(handle), 1e-3)
                twins = [other for other, each in begun.items() if each.piece is piece]
                for twin in twins:
                    del begun[twin]
                cluster.stop(twins)
                done(piece.rows)
    finally:
        cluster.stop(list(begun))


def _slow(begun: dict[Any, _Begun], rates: dict[Slot, float], slot: Slot, now: float) -> Piece[Any] | None:
    """The unit, if any, that has taken longest on another node and that this slot would finish first."""
    twice = Counter(each.piece for each in begun.values())
    for piece, other, at in sorted(begun.values(), key=lambda each: each.at):
        if other.node == slot.node or twice[piece] > 1 or slot not in rates:
            continue
        if now - at > SLOW[0] * piece.rows / rates[slot] + SLOW[1]:
            return piece
    return None
