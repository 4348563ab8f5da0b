"""Near products of blocks of vectors, and what a near product proves of the exact score."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from aoq.pipeline.arithmetic import Arithmetic
from aoq.pipeline.search.device import to_device

SPARE = 1.01
"""More than float64 loses in computing a bound."""


@dataclass(frozen=True)
class Block:
    """Vectors on a device, as given and as multiplied, with upper bounds of their norms and of what rounding took."""

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
    """Bound, for each row, how far its near products with the columns are from the exact ones.

    With vectors a and c rounded to a' and c', of which e_a and e_c are lost,

        |<a, c> - near| <= |e_a| |c| + |a'| |e_c| + (D + 2) u |a'| |c'|,

    where u is the error of an addition, in any order. Rounding of the result comes on top (`floors_of`).
    """
    dimensions, norm, lost = rows.near.shape[1], columns.norms.amax(), columns.lost.amax()
    ours = rows.norms + rows.lost
    adding = (dimensions + 2) * how.adding * ours * (norm + lost)
    vanished = how.smallest * (dimensions + dimensions**0.5 * (ours + norm + lost))
    return SPARE * (rows.lost * norm + ours * lost + adding + vanished)


def floors_of(
    limits: Float32[Tensor, " anchors"], errors: Float64[Tensor, " anchors"], how: Arithmetic
) -> Float[Tensor, " anchors"]:
    """The least near product of a pair whose score reaches the limit.

    A score that is rounded to the limit lies above the middle between it and the number below.
    """
    before = torch.nextafter(limits, torch.full_like(limits, -torch.inf))
    least = (limits.double() + before.double()) / 2 - errors
    if how.result:
        floors = (least - how.result * least.abs()).to(how.dtype)
    else:
        floors = least.to(how.dtype)
        floors = torch.nextafter(floors, torch.full_like(floors, -torch.inf))
    return floors.clamp(min=torch.finfo(how.dtype).min)  # what is masked with -inf reaches none
