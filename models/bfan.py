"""BFAN: Focus Your Attention, a Bidirectional Focal Attention Network for Image-Text Matching (Liu et al., MM 2019)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aoq.models.attention import CONTEXT_AXIS, Block
from aoq.models.base import AttentionDirection, PositiveNumber
from aoq.models.fragments import FragmentModel

Focal = Literal["equal", "prob"]


class BFAN(FragmentModel):
    """Attention in two steps: drop irrelevant fragments, then renormalise the others.

    Scores are sums of both directions' mean cosines; the paper's BFAN averages those of an "equal" and a "prob" model.

    Args:
        focal: A fragment is relevant where its weight is above the mean (`equal`), or above the mean weighted by
            confidence (`prob`).
        temperature: Temperature of the attention.
    """

    directions = "t2i", "i2t"

    def __init__(self, *, focal: Focal = "equal", temperature: PositiveNumber = 20.0, **encoders: Any) -> None:
        super().__init__(**encoders)
        self.focal, self.temperature = focal, temperature

    def attend(self, block: Block, direction: AttentionDirection) -> Float[Tensor, "C W I R"]:
        context = CONTEXT_AXIS[direction]
        return focus(super().attend(block, direction), block.mask(context), context, self.focal)


def focus(
    weights: Float[Tensor, "*axes"], mask: Bool[Tensor, "*masks"] | None, dim: int, focal: Focal
) -> Float[Tensor, "*axes"]:
    """Renormalise the weights of relevant fragments to sum 1; 0 for the others. The choice has no gradient.

    A weight is relevant above the mean of all ("equal"), or above their mean weighted by confidence, the square root
    of each weight ("prob"). Where all are equal, none is above, and all are kept (the official code divides 0 by 0).

    >>> focus(torch.tensor([0.5, 0.3, 0.2]), None, 0, "equal")
    tensor([1., 0., 0.])
    """
    fixed = weights.detach()
    if focal == "equal":
        count = weights.shape[dim] if mask is None else mask.sum(dim, keepdim=True)
        relevant = fixed * count > fixed.sum(dim, keepdim=True)
    else:
        confidence = fixed.sqrt()
        relevant = fixed * confidence.sum(dim, keepdim=True) > (fixed * confidence).sum(dim, keepdim=True)
    focused = torch.where(relevant | ~relevant.any(dim, keepdim=True), weights, 0)
    total = focused.sum(dim, keepdim=True)
    return focused / total.masked_fill(total == 0, 1)  # 0: no fragment is real
