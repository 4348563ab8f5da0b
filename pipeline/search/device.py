"""The parts of a search that depend on the device: arithmetic, tiles, products and their errors, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from aoq.pipeline.engine import CHOOSE_CPU, in_parallel
from aoq.pipeline.search.scores import score_pairs, sum_in_float64


class Arithmetic(NamedTuple):
    """How vectors are multiplied: rounded to `dtype` first, if `rounds`, and the product rounded by `result`."""

    name: str
    dtype: torch.dtype
    cost: float
    """Time of a product relative to float32 on a CPU."""
    adding: float
    """Relative error of an addition. Tensor cores truncate below 24 bits (https://doi.org/10.7717/peerj-cs.330)."""
    rounds: bool = False
    result: float = 0.0
    smallest: float = 2.0**-126
    """Smaller numbers may count as 0."""

    def prepare(self, vectors: Float32[Tensor, "items D"]) -> Float[Tensor, "items D"]:
        """Round the vectors before multiplication; TF32 keeps 10 bits after the leading one."""
        if self.name == "tf32":
            return ((vectors.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
        return vectors.to(self.dtype)


BFLOAT16 = Arithmetic("bfloat16", torch.bfloat16, 0.45, 2.0**-22, rounds=True, result=2.0**-8)
TF32 = Arithmetic("tf32", torch.float32, 0.02, 2.0**-22, rounds=True)
FLOAT32 = Arithmetic("float32", torch.float32, 1.0, 2.0**-24)
FLOAT64 = Arithmetic("float64", torch.float64, 2.2, 2.0**-53, smallest=0.0)


class Tiling(NamedTuple):
    """Tile size, bytes for vectors that stay on the device, and the cost of an exact score (`Arithmetic.cost`)."""

    rows: int
    columns: int
    resident: int
    scoring: float
    pairs: int
    """Pairs scored together; a tile that selects more is divided. On a GPU each call waits for the device."""


def arithmetics(device: torch.device) -> list[Arithmetic]:
    """List the arithmetics that the device has units for."""
    if device.type == "cuda":
        coarse = [BFLOAT16._replace(cost=0.01), TF32] if torch.cuda.get_device_capability(device) >= (8, 0) else []
        return [*coarse, FLOAT32._replace(cost=0.1), FLOAT64._replace(cost=1.0)]
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    has_bfloat16 = able.get("amx_bf16") or able.get("avx512_bf16")
    return [*([BFLOAT16] if has_bfloat16 else []), FLOAT32, FLOAT64]


def choose_tiling(device: torch.device, memory: int, shrink: int) -> Tiling:
    """Choose tiles that fit a CPU's cache or a quarter of a GPU's memory, divided by `shrink`.

    Raises:
        OSError: if there is too little memory for any tile.
    """
    if device.type != "cuda":
        free, tiling = memory, Tiling(1024, max(256, min(4096, memory // 2**18)), 0, 14.0, 2**18)
    else:
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + held
        side = int((free / 64) ** 0.5)
        tiling = Tiling(min(8192, side), min(16384, side), free // 2, 1.0, 2**21)
    if tiling.rows // shrink < 64:
        raise OSError(
            f"{device} has {free / 1e6:,.0f} MB free, which is too little for any tile of this search; free some of "
            f"its memory, or {CHOOSE_CPU}."
        )
    return tiling._replace(rows=tiling.rows // shrink, resident=tiling.resident // shrink, pairs=tiling.pairs // shrink)


def to_device(vectors: Float32[np.ndarray, "items D"], device: torch.device) -> Float32[Tensor, "items D"]:
    """Move a block of vectors to the device; on a CPU, share it if torch can."""
    if device.type == "cuda":
        return torch.from_numpy(np.array(vectors)).pin_memory().to(device, non_blocking=True)
    is_shared = vectors.flags.writeable and vectors.flags.c_contiguous
    return torch.from_numpy(vectors if is_shared else np.array(vectors)).to(device)


def marked_places(mask: Bool[Tensor, "rows columns"]) -> Int64[Tensor, " places"]:
    """List where a mask is True, in the flattened order."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # a few places take numpy a sixth of torch's time
    return mask.flatten().nonzero().squeeze(1)


def multiply(rows: Float[Tensor, "rows D"], columns: Float[Tensor, "columns D"], out: Tensor | None = None) -> Tensor:
    """Multiply all rows with all columns."""
    if out is None:
        out = torch.empty(len(rows), len(columns), dtype=rows.dtype, device=rows.device)
    if rows.device.type == "cpu" and rows.dtype != torch.bfloat16:  # numpy's BLAS takes 20 % less time on AMD
        ours, theirs, products = rows.numpy(), columns.numpy().T, out.numpy()
        in_parallel(lambda a, b: np.matmul(ours[a:b], theirs, out=products[a:b]), len(rows), parts=1)
        return out
    return torch.mm(rows, columns.T, out=out)


def scores_on(
    vectors: Sequence[Float32[Tensor, "_ D"]],
    norms: Sequence[Float64[Tensor, " _"]],
    pairs: Sequence[Int64[Tensor, " pairs"]],
) -> Float32[Tensor, " pairs"]:
    """Score pairs exactly; a GPU leaves those that a float64 sum does not decide to the CPU."""
    if vectors[0].device.type == "cpu":
        (one, other), sizes, places = ([each.numpy() for each in both] for both in (vectors, norms, pairs))
        return torch.from_numpy(score_pairs(one, other, sizes, places))
    scores = sum_in_float64(vectors, norms, pairs)
    if len(left := scores.isnan().nonzero().squeeze(1)):
        here = [[side[p[left]].cpu() for side, p in zip(each, pairs, strict=True)] for each in (vectors, norms)]
        scores[left] = scores_on(here[0], here[1], [torch.arange(len(left))] * 2).to(scores.device)
    return scores


def sort_rows(keys: Int64[Tensor, "anchors width"]) -> Int64[Tensor, "anchors width"]:
    """Sort each row in place; on a CPU numpy is several times faster than torch."""
    if keys.device.type != "cpu":
        return keys.copy_(keys.sort(dim=1).values)
    in_parallel(lambda start, stop: keys.numpy()[start:stop].sort(axis=1), len(keys))
    return keys


SPARE = 1.01
"""Covers the rounding errors of computing a bound in float64."""


@dataclass(frozen=True)
class Operand:
    """Vectors on a device, exact and rounded (`near`), with upper bounds of norms and rounding errors."""

    vectors: Float32[Tensor, "items D"]
    near: Float[Tensor, "items D"]
    norms: Float64[Tensor, " items"]
    lost: Float64[Tensor, " items"]

    @classmethod
    def of(
        cls,
        vectors: Float32[np.ndarray, "items D"],
        norms: Float64[np.ndarray, " items"],
        how: Arithmetic,
        device: torch.device,
    ) -> Operand:
        exact, bounds = to_device(vectors, device), torch.tensor(norms, dtype=torch.float64, device=device)
        near, lost = how.prepare(exact), torch.zeros_like(bounds)
        if how.rounds:
            lost = (exact.double() - near.double()).norm(dim=1) * (1 + 2.0**-20)
        return cls(exact, near, bounds, lost)

    def __len__(self) -> int:
        return len(self.near)

    def __getitem__(self, rows: slice) -> Operand:
        return Operand(self.vectors[rows], self.near[rows], self.norms[rows], self.lost[rows])


def product_errors(rows: Operand, columns: Operand, how: Arithmetic) -> Float64[Tensor, " rows"]:
    """Bound, for each row, the errors of its approximate products with the columns.

    For vectors a and c that are rounded to a' and c', with rounding errors e_a and e_c,

        |<a, c> - near| <= |e_a| |c| + |a'| |e_c| + (D + 2) u |a'| |c'|,

    where u is the relative error of an addition, in any order. `product_floors` adds the rounding of the result.
    """
    dimensions, norm, lost = rows.near.shape[1], columns.norms.amax(), columns.lost.amax()
    ours = rows.norms + rows.lost
    adding = (dimensions + 2) * how.adding * ours * (norm + lost)
    vanished = how.smallest * (dimensions + dimensions**0.5 * (ours + norm + lost))
    return SPARE * (rows.lost * norm + ours * lost + adding + vanished)


def product_floors(
    limits: Float32[Tensor, " anchors"], errors: Float64[Tensor, " anchors"], how: Arithmetic
) -> Float[Tensor, " anchors"]:
    """Return the least approximate product that a pair whose score reaches the limit can have.

    A score that rounds to the limit lies above the midpoint between the limit and the float32 below it.
    """
    before = torch.nextafter(limits, torch.full_like(limits, -torch.inf))
    least = (limits.double() + before.double()) / 2 - errors
    if how.result:
        floors = (least - how.result * least.abs()).to(how.dtype)
    else:
        floors = least.to(how.dtype)
        floors = torch.nextafter(floors, torch.full_like(floors, -torch.inf))
    return floors.clamp(min=torch.finfo(how.dtype).min)  # -inf, which masks positives, never reaches it
