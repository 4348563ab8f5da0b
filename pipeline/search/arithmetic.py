"""The arithmetics of approximate products and bounds on their errors, which hold on every device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from aoq.pipeline.search.problem import blocks


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


PREPARED_ROWS = 512
"""Vectors rounded together on a CPU, so that their errors stay in its cache."""
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
    def of(cls, exact: Float32[Tensor, "items D"], norms: Float64[np.ndarray, " items"], how: Arithmetic) -> Operand:
        bounds = torch.tensor(norms, dtype=torch.float64, device=exact.device)
        if not how.rounds:
            return cls(exact, how.prepare(exact), bounds, torch.zeros_like(bounds))
        near, lost = torch.empty_like(exact, dtype=how.dtype), torch.empty_like(bounds)
        # Float32 takes a sixth of float64's time. In units of the norms, only squares below 2^-126 vanish.
        units, dimensions = bounds.float().clamp(2.0**-126, 2.0**127), exact.shape[1]
        size = PREPARED_ROWS if exact.device.type == "cpu" else max(1, len(exact))
        for some in (slice(*rows) for rows in blocks(len(exact), size)):
            near[some] = how.prepare(exact[some])
            errors = torch.sub(exact[some], near[some]).div_(units[some, None]).norm(dim=1).double()
            lost[some] = units[some] * (errors * (1 + dimensions * 2.0**-22) + dimensions**0.5 * 2.0**-63)
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
