"""GPO: Learning the Best Pooling Strategy for Visual Semantic Embedding (Chen et al., CVPR 2021)."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from aoq.models.packing import ranks, run_over, sent
from aoq.models.regions import Fragments, Mask, count, zero_masked

TEMPERATURE = 0.1
WAVELENGTH = 10000.0
"""Wavelength of the slowest position code, divided by 2 pi."""


class GPO(nn.Module):
    """The generalised pooling operator: each dimension's values, sorted and weighted by rank, eq. (2) to (5).

        pooled_d = sum_k theta_k max_k(x_1d, ..., x_Nd)        theta = softmax_k(MLP(BiGRU(p_1, ..., p_N)_k))

    max_k is the k-th largest value of an item's N real fragments, and p_k the code of position k. The weights follow
    from N alone, so mean, maximum and all between can be learnt, and items of one length share them.

    What the paper leaves open is as in the released code: both directions are averaged, the MLP is one layer without
    bias, and the softmax has temperature 0.1. As there, and unlike eq. (3), positions count from 0: the published
    weights depend on it.
    """

    def __init__(self, position_size: int = 32, hidden_size: int = 32) -> None:
        super().__init__()
        self.position_size = position_size
        self.recurrence = nn.GRU(position_size, hidden_size, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, fragments: Fragments, mask: Mask) -> Float[Tensor, "items size"]:
        """Pool each item to one vector, whatever values are masked. Without fragments the vector is zero."""
        longest = fragments.shape[1]
        if mask is None:
            weights = self.weights(torch.tensor([longest])).expand(len(fragments), -1)
            values = fragments.sort(dim=1, descending=True).values
        else:
            # For every number that could occur: which of them do is known on the device alone.
            weights = self.weights(torch.arange(1, longest + 1))[count(mask) - 1]
            values = fragments.masked_fill(~mask.unsqueeze(2), -torch.inf).sort(dim=1, descending=True).values
            values = zero_masked(values, ranks(longest, mask.sum(1)))
        return torch.bmm(weights.unsqueeze(1), values).squeeze(1)

    def weights(self, sizes: Int[Tensor, " sizes"]) -> Float[Tensor, "sizes fragments"]:
        """Compute theta for each of these numbers of fragments, which are on the CPU; 0 beyond it."""
        longest = int(sizes.max())
        codes = sent(position_codes(longest, self.position_size).to(self.score.weight.dtype), self.score.weight.device)
        states, _ = run_over(self.recurrence, codes.expand(len(sizes), -1, -1), sizes)
        scores = self.score(states.unflatten(2, (2, -1)).mean(2)).squeeze(2) / TEMPERATURE
        return scores.masked_fill(sent(~ranks(longest, sizes), scores.device), -torch.inf).softmax(1)


def position_codes(positions: int, size: int) -> Float[Tensor, "positions size"]:
    """Return sines at even places, cosines at odd ones, eq. (4): w_j = 10000^(-2j / size), positions from 0.

    >>> position_codes(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)
    """
    frequencies = WAVELENGTH ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(positions).unsqueeze(1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


class SizeAugmentation(nn.Dropout):
    """Leave out each fragment with probability p in training, so that GPO sees many lengths (section 3.3).

    An item that would lose all its fragments keeps them.
    """

    def forward(self, input: Bool[Tensor, "items fragments"]) -> Bool[Tensor, "items fragments"]:  # noqa: A002
        """Return the mask of the fragments that stay."""
        if not self.training or self.p == 0:
            return input
        kept = input & (torch.rand(input.shape, device=input.device) >= self.p)
        return torch.where(kept.any(1, keepdim=True), kept, input)
