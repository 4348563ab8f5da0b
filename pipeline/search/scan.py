"""The one pass over tiles of approximate products: select the pairs that may reach a limit, and score them exactly.

A limit is a score that an anchor's h best candidates, and few others, should reach, estimated from a sample. It proves
nothing: it decides how many pairs are scored exactly, and an anchor whose limit was too high is searched again. A pair
is scored if its product, with the error that it may have, could reach the limit of its row or of its column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from aoq.pipeline.engine import CHOOSE_CPU, find_device, return_freed_memory
from aoq.pipeline.search.arithmetic import Arithmetic, Operand, product_errors, product_floors
from aoq.pipeline.search.device import (
    Tiling,
    arithmetics,
    choose_tiling,
    marked_places,
    multiply,
    scores_on,
    to_device,
)
from aoq.pipeline.search.pool import KEY_BYTES, Pool, width_for
from aoq.pipeline.search.problem import FIRST_DEVIATIONS, Side, blocks

_PROBED = 256
"""Anchors on which the arithmetic is chosen."""
Near = Float[Tensor, "rows columns"]


@dataclass(frozen=True)
class Edge:
    """The rows or the columns of a tile: vectors, error bounds of their products, and the pairs that they keep.

    They are candidates `first`, `first` + 1, … of the other edge. `pool` is None if their lists are not wanted.
    """

    block: Operand
    errors: Float64[Tensor, " vectors"]
    pool: Pool | None
    first: int

    def __getitem__(self, some: slice) -> Edge:
        pool = None if self.pool is None else self.pool[some]
        return Edge(self.block[some], self.errors[some], pool, self.first + some.start)


@dataclass(eq=False)
class Scan:
    """Scans tiles on a device, in one arithmetic, with buffers that are reused."""

    device: torch.device
    tiling: Tiling
    how: Arithmetic
    _resident: dict[int, Operand] = field(default_factory=dict, repr=False)
    _reused: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, side: Side, shrink: int = 1) -> Scan:
        """Choose device, tile size and arithmetic for these vectors."""
        device = find_device(side.device)
        tiling = choose_tiling(device, side.memory, shrink)
        return cls(device, tiling, choose_arithmetic(side, device, tiling))

    def limits(self, side: Side, deviations: float = FIRST_DEVIATIONS) -> Float32[Tensor, " anchors"]:
        """Take, for each anchor, the approximate product of the chosen rank in the sample."""
        sample, rank = _sample(side, self.how, self.device, deviations)
        limits = []
        for start, stop in blocks(len(side.anchors), max(1, self.tiling.rows * self.tiling.columns // len(sample))):
            near = multiply(self.how.prepare(to_device(side.anchors[start:stop], self.device)), sample.near)
            limits.append(near.topk(rank, sorted=False).values.amin(1).float())
        return torch.cat(limits)

    def sweep(
        self,
        side: Side,
        pool: Pool | None,
        limits: Float32[Tensor, " candidates"] | None = None,
        h: int = 0,
        first: int = 0,
    ) -> Iterator[Pool | None]:
        """Compare these anchors with all candidates, tile by tile, and yield what the candidates of each tile keep.

        Anchors keep candidates in `pool`. With `limits`, candidates keep anchors too, for lists of h, numbered from
        `first`.
        """
        columns = self.tiling.columns
        if limits is not None:
            columns = max(1, min(columns, side.memory // 8 // (KEY_BYTES * width_for(h, len(side.anchors)))))
        anchors = Operand.of(to_device(side.anchors, self.device), side.anchor_norms, self.how)
        counts, order = np.diff(side.positives.offsets), np.argsort(side.positives.ids, kind="stable")
        owners, own = np.repeat(np.arange(len(counts)), counts)[order], side.positives.ids[order].astype(np.int64)
        for start, stop in blocks(len(side.candidates), columns):
            candidates = self._candidates(side, start, stop)
            others = None if limits is None else Pool.empty(limits[start:stop], h, len(side.anchors))
            some = slice(*np.searchsorted(own, [start, stop]))
            for top, bottom in blocks(len(anchors), self.tiling.rows):
                ours, mine = anchors[top:bottom], None if pool is None else pool[top:bottom]
                rows = Edge(ours, product_errors(ours, candidates, self.how), mine, first + top)
                ends = Edge(candidates, product_errors(candidates, ours, self.how), others, start)
                near = self._reuse("near", (bottom - top, stop - start), self.how.dtype)
                multiply(ours.near, candidates.near, out=near)
                here = (owners[some] >= top) & (owners[some] < bottom)
                pairs = owners[some][here] - top, own[some][here] - start
                near[tuple(torch.from_numpy(each).to(self.device) for each in pairs)] = -torch.inf  # positives
                self._select(near, rows, ends)
            yield others
        return_freed_memory()

    def _candidates(self, side: Side, start: int, stop: int) -> Operand:
        """Move candidates to the device; they stay on a GPU if `tiling.resident` allows it."""
        known = self._resident.get(start)
        if known is None or len(known) != stop - start:
            vectors = to_device(side.candidates[start:stop], self.device)
            known = Operand.of(vectors, side.candidate_norms[start:stop], self.how)
            if 2 * side.candidates.nbytes <= self.tiling.resident:
                self._resident[start] = known
        return known

    def _select(self, near: Near, rows: Edge, columns: Edge) -> None:
        """Keep the pairs of a tile. If they are too many, keep those of its first half first, which raises limits."""
        places = self._reaching(near, rows, columns)
        if len(places) <= self.tiling.pairs and self._keep(near, rows, columns, places):
            return
        for half in (slice(0, max(near.shape) // 2), slice(max(near.shape) // 2, max(near.shape))):
            if near.shape[0] > near.shape[1]:
                self._select(near[half], rows[half], columns)
            else:
                self._select(near[:, half], rows, columns[half])

    def _reaching(self, near: Near, rows: Edge, columns: Edge) -> Int64[Tensor, " pairs"]:
        """Find the pairs that may reach a limit; NaN does too, so that `_check` sees it.

        On a CPU bfloat16 is compared as integers, which treat a NaN with a minus sign as a low product.
        """
        floors = [
            product_floors(edge.pool.limits, edge.errors, self.how) for edge in (rows, columns) if edge.pool is not None
        ]
        least = floors[-1] if rows.pool is None else floors[0].unsqueeze(1)
        if len(floors) == 2:
            least = torch.minimum(least, floors[1], out=self._reuse("least", tuple(near.shape), self.how.dtype))
        is_slow = near.dtype == torch.bfloat16 and near.device.type == "cpu"
        if is_slow and all((each > 0).all() for each in floors):  # bits of such numbers have the numbers' order
            near, least = near.view(torch.int16), least.view(torch.int16)
        below = torch.lt(near, least, out=self._reuse("below", tuple(near.shape), torch.bool))
        return marked_places(below.logical_not_())

    def _keep(self, near: Near, rows: Edge, columns: Edge, places: Int64[Tensor, " pairs"]) -> bool:
        """Score pairs exactly and keep those that reach a limit; return False if they do not fit into a pool."""
        row, column = places // near.shape[1], places % near.shape[1]
        sides = [
            (edge.pool, own, others + first)
            for edge, own, others, first in ((rows, row, column, columns.first), (columns, column, row, rows.first))
            if edge.pool is not None
        ]
        if any((torch.bincount(own, minlength=1) > pool.keys.shape[1]).any() for pool, own, _ in sides):
            return False  # an anchor is offered more candidates than its keys hold, so they need not be scored
        one, other = rows.block, columns.block
        scores = scores_on((one.vectors, other.vectors), (one.norms, other.norms), (row, column))
        self._check(near.take(places).double(), scores.double(), rows.errors[row])
        reached = [pool.reached(own, scores) for pool, own, _ in sides]
        for (pool, own, others), some in zip(sides, reached, strict=True):
            if any(each is None for each in reached):
                return False
            pool.add(own[some], others[some], scores[some])
        return True

    def _check(self, near: Tensor, scores: Tensor, errors: Tensor) -> None:
        """Refuse a device whose products exceed their error bound."""
        allowed = errors + (self.how.result + 2.0**-22) * (scores.abs() + errors) + 2.0**-149
        if not bool(((near - scores).abs() <= allowed).all()):
            raise OSError(
                f"{self.device} computed products whose errors exceed the bound of {self.how.name}; no list was made; "
                f"check the device, or {CHOOSE_CPU}."
            )

    def _reuse(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a reused buffer: touching fresh pages costs more than filling them."""
        size = shape[0] * shape[1]
        if name not in self._reused or len(self._reused[name]) < size:
            self._reused[name] = torch.empty(size, dtype=dtype, device=self.device)
        return self._reused[name][:size].view(*shape)


def choose_arithmetic(side: Side, device: torch.device, tiling: Tiling) -> Arithmetic:
    """Choose the arithmetic with the least total cost of products and exact scores.

    If the vectors have collapsed, the error of a coarse product exceeds the differences between scores, so most pairs
    would need an exact score.
    """
    rows = np.linspace(0, len(side.anchors) - 1, min(_PROBED, len(side.anchors))).astype(np.int64)
    able, costs = arithmetics(device), list[float]()
    for how in able:
        if costs and min(costs) <= how.cost:
            break  # the product alone costs more
        sample, rank = _sample(side, how, device, FIRST_DEVIATIONS)
        anchors = Operand.of(to_device(side.anchors[rows], device), side.anchor_norms[rows], how)
        near = multiply(anchors.near, sample.near)
        limits = near.topk(rank, sorted=False).values.amin(1).float()
        above = torch.nextafter(limits, torch.full_like(limits, torch.inf))  # many ties raise limits during the scan
        left_open = near >= product_floors(above, product_errors(anchors, sample, how), how)[:, None]
        costs.append(how.cost + tiling.scoring * float(left_open.float().mean()))
    return able[int(np.argmin(costs))]


def _sample(side: Side, how: Arithmetic, device: torch.device, deviations: float) -> tuple[Operand, int]:
    sampled, rank = side.size.sample(deviations)
    rows = np.arange(len(side.candidates))
    if sampled < len(rows):
        rows = np.sort(np.random.default_rng(0).choice(len(rows), sampled, replace=False))
    return Operand.of(to_device(side.candidates[rows], device), side.candidate_norms[rows], how), rank
