"""Pairs of a block with a tile of candidates that may reach a limit, by whichever arithmetic this process has.

Limits are exact scores, and what is found is scored exactly, on a CPU while its tile is at hand. So neither the
arithmetic nor the device shows in a result.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Float64

from aoq.pipeline.search.brute_force import tensor_of
from aoq.pipeline.search.problem import LAST_BITS, NORMS, Problem, blocks
from aoq.pipeline.search.products import choice
from aoq.pipeline.search.products.product import Limits, Product, Scan, lowered
from aoq.pipeline.search.tiles import Keeper, TileKeeper, scan_scores


class Kept(NamedTuple):
    """Pairs that either side keeps of some tiles."""

    rows: Keeper
    columns: Keeper
    tiles: TileKeeper | None
    """Nothing on a GPU, which looks tiles through itself."""

    @property
    def pairs(self) -> int:
        """Number of pairs that are held."""
        return sum(int(keeper._counts.sum()) for keeper in (self.rows, self.columns))


class EveryPair:
    """A product that finds every pair: for vectors so small that near scores of theirs underflow."""

    precision = "none"

    def prepare(self, vectors: Float32[np.ndarray, "items D"]) -> int:
        return len(vectors)

    def __call__(self, one: int, other: int) -> Float32[np.ndarray, "items others"]:
        return np.zeros((one, other), np.float32)

    def scan(self, images: int, captions: int, limits: Limits) -> Scan:
        rows, columns = (np.where(each < np.inf, np.float32(-np.inf), each) for each in limits)
        return scan_scores, (self(images, captions), (rows, columns))


class Near:
    """Near products of a block with one chunk of candidates."""

    def __init__(
        self,
        block: Float32[np.ndarray, "anchors D"],
        chunk: Float32[np.ndarray, "candidates D"],
        longest: float,
        device: str,
    ) -> None:
        # Where all vectors are tiny, powers of two lift them to where float32 has its full precision.
        lifts = [_lift(vectors) for vectors in (block, chunk)]
        self._lift, self._device, self._vectors = math.prod(lifts), device, (block, chunk)
        self._block, self._chunk = (
            vectors * np.float32(lift) if lift != 1 else vectors
            for vectors, lift in zip((block, chunk), lifts, strict=True)
        )
        problem = Problem(self._block, self._chunk, np.empty((0, 2), np.int32), 1, 0)
        on_gpu = device != "cpu"
        self._product = choice.near_product(problem, "float32" if on_gpu else choice.fastest_precision())
        self._prepared: Any = self._on_device(self._block) if on_gpu else self._product.prepare(self._block)
        self._scanner: Product = self._product if lifts == [1.0, 1.0] else EveryPair()
        self.error = problem["i2t"].rounding_error / self._lift if on_gpu else 0.0
        """Error bound of the scores of what is kept: on a CPU these are exact."""
        self._slack = self.error + LAST_BITS * longest

    def scores(self, start: int, stop: int) -> torch.Tensor:
        """Near scores of all anchors with the chunk's candidates from `start` to before `stop`."""
        part = self._chunk[start:stop]
        if self._device != "cpu":
            near = self._prepared @ self._on_device(part).T
        else:
            near = torch.from_numpy(self._product(self._prepared, self._product.prepare(part)))
        return near / self._lift

    def begin(
        self, limits: Float32[np.ndarray, " anchors"], other_limits: Float32[np.ndarray, " candidates"], tile: int
    ) -> Kept:
        """Begin to keep the pairs whose exact score may reach their anchor's limit, or their candidate's."""
        if self._device == "cpu":
            rows, columns = Keeper(limits, most=2**62), Keeper(other_limits, most=2**62)
            return Kept(rows, columns, TileKeeper(self._scanner, self._vectors[0], rows, columns, tile))
        rows, columns = (Keeper(self._lowered(each), most=2**62) for each in (limits, other_limits))
        return Kept(rows, columns, None)

    def scan(self, kept: Kept, start: int, stop: int, first: int) -> None:
        """Look the chunk's candidates from `start` to before `stop` through; those of `kept` begin at `first`."""
        part, places = self._chunk[start:stop], (start - first, stop - first)
        if kept.tiles is not None:
            kept.tiles.take(self._vectors[1][start:stop], places[0])
            return
        near = self._prepared @ self._on_device(part).T
        columns = kept.columns.limits[places[0] : places[1]]
        rows_limits, columns_limits = (torch.from_numpy(each).to(near.device) for each in (kept.rows.limits, columns))
        for keeper, reaches in ((kept.rows, near >= rows_limits[:, None]), (kept.columns, near >= columns_limits)):
            row, column = (each.int().cpu().numpy() for each in reaches.nonzero(as_tuple=True))
            column = column + np.int32(start - first)
            ids = (row, column) if keeper is kept.rows else (column, row)
            keeper.add(*ids, near[reaches].cpu().numpy())

    def kept(self, keeper: Keeper) -> tuple[np.ndarray, np.ndarray, Float64[np.ndarray, " pairs"]]:
        """Return where the pairs of each anchor start and stop, their candidates, and scores."""
        offsets, candidates, scores = keeper.kept()
        return offsets, candidates, scores.astype(np.float64) / (1.0 if self._device == "cpu" else self._lift)

    def _lowered(self, limits: Float32[np.ndarray, " anchors"]) -> Float32[np.ndarray, " anchors"]:
        """Lower exact limits to what near scores must reach."""
        with np.errstate(over="ignore"):  # lifted past float32: all pairs reach it, or none
            return lowered(limits, lambda limit: (limit - self._slack) * self._lift)

    def _on_device(self, vectors: Float32[np.ndarray, "items D"]) -> torch.Tensor:
        return tensor_of(vectors).to(self._device)


def _lift(vectors: Float32[np.ndarray, "items D"]) -> float:
    """A power of two that makes the largest entry about 1, where it is so small that products would underflow."""
    most = float(max((np.abs(vectors[a:b]).max() for a, b in blocks(len(vectors), 4096)), default=0))
    return 1.0 if most == 0 or most > 10 * NORMS[0] else 2.0 ** min(120, -math.floor(math.log2(most)))
