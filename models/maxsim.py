"""ColBERT: Efficient and Effective Passage Search via Contextualized Late Interaction over BERT (Khattab and Zaharia,
SIGIR 2020): its MaxSim, between regions and words."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.models.attention import CONTEXT_AXIS, Block, aggregate
from aoq.models.base import AttentionDirection
from aoq.models.fragments import FragmentModel


class MaxSim(FragmentModel):
    """Every fragment of one side is compared with the fragment of the other side that is most similar to it, eq. (3):

        t2i: sum over words w of max over regions r of <w, r>
        i2t: sum over regions r of max over words w of <w, r>

    "Mean" divides by the number of words (t2i) or regions (i2t), so that length does not change a caption's score.

    Args:
        direction: `t2i`: the best region of each word. `i2t`: the best word of each region. `both`: the mean of the two
            (FILIP, Yao et al., ICLR 2022).
        aggregation: Function that makes one similarity of the best matches; the paper's is `Sum`.
    """

    def __init__(
        self,
        *,
        direction: Literal["t2i", "i2t", "both"] = "t2i",
        aggregation: Literal["Mean", "Sum"] = "Mean",
        **encoders: Any,
    ) -> None:
        super().__init__(**encoders)
        self.directions: list[AttentionDirection] = ["t2i", "i2t"] if direction == "both" else [direction]
        self.aggregation = aggregation

    def attend(self, block: Block) -> dict[AttentionDirection, Float[Tensor, "C W I R"]]:
        """Weigh the best match by 1, without gradient."""
        weights_by_direction = {}
        for direction in self.directions:
            products, dim = _real_products(block, direction).detach(), CONTEXT_AXIS[direction]
            weights = torch.zeros_like(products).scatter_(dim, products.argmax(dim, keepdim=True), 1)
            mask = block.mask(dim)
            weights_by_direction[direction] = weights if mask is None else weights.masked_fill(~mask, 0)
        return weights_by_direction

    def compare(self, block: Block) -> Float[Tensor, "C I"]:
        scores = []
        for direction in self.directions:
            best = _real_products(block, direction).max(CONTEXT_AXIS[direction]).values
            scores.append(aggregate(best, block, direction=direction, aggregation=self.aggregation))
        return sum(scores[1:], scores[0]) / len(scores)


def _real_products(block: Block, direction: AttentionDirection) -> Float[Tensor, "C W I R"]:
    """Set the products with masked context to -inf; where all is masked, zero vectors are compared."""
    dim = CONTEXT_AXIS[direction]
    mask = block.mask(dim)
    if mask is None:
        return block.products
    return block.products.masked_fill(~mask & mask.any(dim, keepdim=True), -torch.inf)
