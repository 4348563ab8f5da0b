"""IMRAM: Iterative Matching with Recurrent Attention GatedMemory for Image-Text Retrieval (Chen et al., CVPR 2020)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aoq.models.attention import QUERY_AXIS, Block
from aoq.models.base import AttentionDirection, PositiveNumber, StepCount
from aoq.models.fragments import FragmentModel

Mode = Literal["text", "image", "full"]
DIRECTIONS_BY_MODE: dict[Mode, tuple[AttentionDirection, ...]] = {
    "text": ("t2i",),
    "image": ("i2t",),
    "full": ("t2i", "i2t"),
}


class IMRAM(FragmentModel):
    """Attention in `steps` rounds, each query refined by what it has seen; the rounds' similarities are added.

    In each round a query's similarity is the cosine of the *original* fragment and the refined one's attended vector,
    averaged over the queries. The attention that it reports is the first round's, whose queries are the fragments.

    Args:
        mode: Fragments that are the queries: words (`text`), regions (`image`), or both in turn (`full`).
        steps: Rounds of attention, with a memory between them.
        temperature: Temperature of the attention.
    """

    def __init__(
        self, *, mode: Mode = "full", steps: StepCount = 3, temperature: PositiveNumber = 9.0, **encoders: Any
    ) -> None:
        super().__init__(**encoders)
        self.directions, self.steps, self.temperature = DIRECTIONS_BY_MODE[mode], steps, temperature
        refined = self.directions if steps > 1 else ()
        self.memory = nn.ModuleDict({direction: GatedMemory(self.project.out_features) for direction in refined})

    def compare_in(self, block: Block, direction: AttentionDirection) -> Float[Tensor, "C I"]:
        if self.steps == 1:
            return super().compare_in(block, direction)
        memory = self.memory[direction]
        assert isinstance(memory, GatedMemory)
        if direction == "t2i":
            first, own = block.words.unsqueeze(2), memory.own(block.words).unsqueeze(2)
            context, seen = block.regions.vectors, block.regions.once(memory.seen)
            of_query, of_context = "cwi", "cir" if block.is_aligned else "ir"
        else:
            first, own = block.regions.vectors, block.regions.once(memory.own)
            context, seen = block.words, memory.seen(block.words)
            of_query, of_context = "cir", "cw"
        row = 0 if of_context == "ir" else ...  # one group of images for all captions

        def rounds() -> Tensor:
            total, weights = self._look(block, block.products, direction)
            queries = first
            for step in range(1, self.steps):
                projected = own if step == 1 else memory.own(queries)
                attended = torch.einsum(f"cwir,{of_context}d->{of_query}d", weights, seen[row])
                queries = memory(queries, projected + attended)
                products = torch.einsum(f"{of_query}d,{of_context}d->cwir", queries, context[row])
                similarity, weights = self._look(block, products, direction)
                total = total + similarity
            return total

        if not torch.is_grad_enabled():
            return rounds()
        # Fill the block's caches now: inside the checkpoint they would be computed again each time.
        _ = block.word_norm, block.word_gram, block.regions.norm, block.regions.gram
        return checkpoint(rounds, use_reentrant=False, preserve_rng_state=False)

    def _look(
        self, block: Block, products: Float[Tensor, "C W I R"], direction: AttentionDirection
    ) -> tuple[Float[Tensor, "C I"], Float[Tensor, "C W I R"]]:
        """Do one round: return the original fragments' similarity to the attended vectors, and the weights."""
        real = block.mask(QUERY_AXIS[direction])
        if real is not None:  # refined padding is no longer zero, and products are normalised over it
            products = products.masked_fill(~real, 0)
        weights = self.attend(replace(block, products=products), direction)
        return self.aggregate(block.attended_cosine(weights, direction), block, direction), weights


class GatedMemory(nn.Module):
    """q <- g q + (1 - g) tanh(W [q; c]) with g = sigmoid(W' [q; c]), for a query q and its attended vector c.

    W and W' are applied to q (`own`) and to the fragments of c (`seen`) separately: both are linear, and fragments
    are far fewer than pairs.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.own = nn.Linear(size, 2 * size)
        self.seen = nn.Linear(size, 2 * size, bias=False)

    def forward(self, queries: Float[Tensor, "*#pairs D"], projected: Float[Tensor, "*#pairs D2"]) -> Tensor:
        gate, update = projected.chunk(2, dim=-1)
        new = update.tanh()
        return new + gate.sigmoid() * (queries - new)  # not `lerp`, which takes no two dtypes under autocast
