"""ColBERT's MaxSim (Khattab and Zaharia, SIGIR 2020), between regions and words."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.models.attention import CONTEXT_AXIS, Block
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
        self.directions = ("t2i", "i2t") if direction == "both" else (direction,)
        self.aggregation = aggregation

    def attend(self, block: Block, direction: AttentionDirection) -> Float[Tensor, "C W I R"]:
        """Weigh the best match by 1, without gradient."""
        context = CONTEXT_AXIS[direction]
        products, mask = block.real_products(context).detach(), block.mask(context)
        weights = torch.zeros_like(products).scatter_(context, products.argmax(context, keepdim=True), 1)
        return weights if mask is None else weights.masked_fill(~mask, 0)

    def compare(self, block: Block) -> Float[Tensor, "C I"]:
        return super().compare(block) / len(self.directions)

    def compare_in(self, block: Block, direction: AttentionDirection) -> Float[Tensor, "C I"]:
        context = CONTEXT_AXIS[direction]
        return self.aggregate(block.real_products(context).max(context).values, block, direction)
