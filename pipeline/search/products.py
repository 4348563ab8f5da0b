"""Approximate products of blocks of vectors, and their error bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from aoq.pipeline.arithmetic import Arithmetic
from aoq.pipeline.search.device import to_device

SPARE = 1.01
"""Covers the rounding errors of computing a bound in float64."""


@dataclass(frozen=True)
class Block:
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
    ) -> Block:
        given, bounds = to_device(vectors, device), torch.tensor(norms, dtype=torch.float64, device=device)
        near, lost = how.prepare(given), torch.zeros_like(bounds)
        if how.rounds:
            lost = (given.double() - near.double()).norm(dim=1) * (1 + 2.0**-20)
        return cls(given, near, bounds, lost)

    def __len__(self) -> int:
        return len(self.near)

    def __getitem__(self, rows: slice) -> Block:
        return Block(self.vectors[rows], self.near[rows], self.norms[rows], self.lost[rows])


def errors_of(rows: Block, columns: Block, how: Arithmetic) -> Float64[Tensor, " rows"]:
    """Bound, for each row, the errors of its approximate products with the columns.

    For vectors a and c that are rounded to a' and c', with rounding errors e_a and e_c,

        |<a, c> - near| <= |e_a| |c| + |a'| |e_c| + (D + 2) u |a'| |c'|,

    where u is the relative error of an addition, in any order. `floors_of` adds the rounding of the result.
    """
    dimensions, norm, lost = rows.near.shape[1], columns.norms.amax(), columns.lost.amax()
    ours = rows.norms + rows.lost
    adding = (dimensions + 2) * how.adding * ours * (norm + lost)
    vanished = how.smallest * (dimensions + dimensions**0.5 * (ours + norm + lost))
    return SPARE * (rows.lost * norm + ours * lost + adding + vanished)


def floors_of(
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
