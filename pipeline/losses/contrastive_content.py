"""CCR and CCS: contrast attended content with the rest and with another fragment (Chen et al., WACV 2023).

A query q with attention weights w over the keys k attends to a = sum_k w_k k. One query is drawn per matched pair and
direction. The paper leaves some points open. Here the terms are summed over pairs and directions, like the ranking
loss that their weights are relative to; Sim is the cosine for every model; `<start>` and `<end>` are never drawn, but
remain keys; nothing is detached. Undefined terms are left out: a~ with a single key, q^ with no other query, and
queries that attend to nothing.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from aoq.models.base import FragmentAttention
from aoq.models.layers import l2_normalise
from aoq.pipeline.losses.hinge import NO_NEGATIVE

Weights = Float[Tensor, "pairs keys"]


def content_similarities(
    attention: FragmentAttention, uniform: Float64[Tensor, "2 pairs"]
) -> tuple[Float[Tensor, " pairs"], dict[str, Float[Tensor, " pairs"]]]:
    """Draw two queries of each pair by `uniform` numbers from [0, 1), and compare them with the attended content.

    Return Sim(q, a), and the similarities that it should exceed by a margin: Sim(q, a~) for CCR, eq. (6), where a~
    weighs keys by 1 - w, and Sim(q^, a) for CCS, eq. (7), where q^ is another query; `NO_NEGATIVE` if undefined.
    """
    eligible = eligible_queries(attention)
    attending = eligible & (attention.weights.detach().sum(2) > 0)
    drawn = pick(attending, uniform[0])
    other = pick(eligible.scatter(1, drawn.unsqueeze(1), False), uniform[1])
    pairs = torch.arange(len(drawn), device=drawn.device)
    query, weights = attention.queries[pairs, drawn], attention.weights[pairs, drawn]
    attended, rest = (
        torch.einsum("pk,pkd->pd", some, attention.keys)
        for some in (weights, reversed_weights(weights, attention.key_mask))
    )
    own, missing = cosine(query, attended), ~attending.any(1)
    to_rest = cosine(query, rest).masked_fill(missing | (attention.key_mask.sum(1) < 2), NO_NEGATIVE)
    to_other = cosine(attention.queries[pairs, other], attended)
    return own, {"ccr": to_rest, "ccs": to_other.masked_fill(missing | (eligible.sum(1) < 2), NO_NEGATIVE)}


def eligible_queries(attention: FragmentAttention) -> Bool[Tensor, "pairs queries"]:
    """Mark the real queries, except the marks of a caption's start and end."""
    real = attention.query_mask
    if attention.direction == "i2t" or not attention.has_ends:
        return real
    place = real.cumsum(1)
    return real & (place > 1) & (place < real.sum(1, keepdim=True))


def reversed_weights(weights: Weights, mask: Bool[Tensor, "pairs keys"]) -> Weights:
    """Compute w~ = (1 - w) / sum (1 - w) over the real keys, eq. (5); 0 elsewhere, and if there is only one key.

    >>> reversed_weights(torch.tensor([[0.5, 0.3, 0.2, 0.0]]), torch.tensor([[True, True, True, False]]))
    tensor([[0.2500, 0.3500, 0.4000, 0.0000]])
    """
    rest = (1 - weights).masked_fill(~mask, 0)
    total = rest.sum(1, keepdim=True)
    return rest / total.masked_fill(mask.sum(1, keepdim=True) < 2, torch.inf)


def cosine(one: Float[Tensor, "pairs D"], other: Float[Tensor, "pairs D"]) -> Float[Tensor, " pairs"]:
    """Return the cosine of each pair; 0 if either vector is zero."""
    return (l2_normalise(one) * l2_normalise(other)).sum(1)


def pick(mask: Bool[Tensor, "pairs queries"], uniform: Float64[Tensor, " pairs"]) -> Int[Tensor, " pairs"]:
    """Draw the position of one True entry per row, uniformly; 0 in rows without any.

    >>> pick(torch.tensor([[False, True, True], [False, False, False]]), torch.tensor([0.6, 0.6]).double())
    tensor([2, 0])
    """
    count = mask.sum(1)
    rank = (uniform * count).long().clamp(max=count - 1)
    return (mask & (mask.cumsum(1) == rank.unsqueeze(1) + 1)).int().argmax(1)
