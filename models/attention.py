"""SCAN's cross attention (Lee et al., ECCV 2018): every query fragment attends to all fragments of the context.

Nothing here forms an attended vector. With attention weights a over the context's fragments v, and a query q,

    cos(q, sum_k a_k v_k) = sum_k a_k <q, v_k> / (|q| sqrt(a^T G a)),     G_kl = <v_k, v_l>,

so the region-word products and small Gram matrices are enough. The cosine does not see the scale of a, hence the
softmax stays unnormalised; and a padded fragment, kept as a zero vector, adds nothing to either sum.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from models.normalise import EPSILON, safe_norm

Direction = Literal["t2i", "i2t"]
Aggregation = Literal["Mean", "LogSumExp"]

SLOPE = 0.1
FLOOR = 1e-37  # near the smallest normal float32: a squared norm below it is that of a zero vector
LARGEST_TEMPERATURE = 40.0  # exp(2 * 40) times some hundred regions squared is still a float32


def paired_cosine(
    queries: Float[Tensor, "pairs Q D"], contexts: Float[Tensor, "pairs K D"], *, temperature: float
) -> Float[Tensor, "pairs Q"]:
    """The cosine of each query and what it attends to, for aligned pairs; 0 for a zero query.

    a_qk ~ exp(temperature * x_qk), x = LeakyReLU(<q, v_k>) over its norm along the queries.
    """
    products = torch.bmm(queries, contexts.transpose(1, 2))
    clipped = F.leaky_relu(products, SLOPE)
    weights = (clipped * (temperature / (safe_norm(clipped, 1) + EPSILON))).exp()
    numerator = (weights * products).sum(2)
    square = (torch.bmm(weights, torch.bmm(contexts, contexts.transpose(1, 2))) * weights).sum(2)
    return numerator * square.masked_fill(square <= FLOOR, torch.inf).rsqrt() / safe_norm(queries).squeeze(-1)


def aggregate(
    cosines: Float[Tensor, "*axes"],
    mask: Bool[Tensor, "*axes"],
    *,
    dim: int,
    aggregation: Aggregation,
    temperature: float,
) -> Float[Tensor, "*fewer"]:
    """One number for all queries of a pair: their mean, or log(sum exp(temperature * cosine)) / temperature.

    >>> cosines, mask = torch.tensor([[0.2, 0.4, 9.0]]), torch.tensor([[True, True, False]])
    >>> aggregate(cosines, mask, dim=1, aggregation="Mean", temperature=6.0)
    tensor([0.3000])
    """
    if aggregation == "Mean":
        return cosines.masked_fill(~mask, 0).sum(dim) / mask.sum(dim).clamp_min(1)
    return (temperature * cosines).masked_fill(~mask, -torch.inf).logsumexp(dim) / temperature
