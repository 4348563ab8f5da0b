"""Cross attention between words and regions (Lee et al., ECCV 2018) without forming attended vectors.

With attention weights a over the context's fragments v, and a query q,

    cos(q, sum_k a_k v_k) = sum_k a_k <q, v_k> / (|q| sqrt(a^T G a)),     G_kl = <v_k, v_l>,

so the word-region products and small Gram matrices are enough. Everything here works on a `Block`; of its axes
(captions, words, images, regions), words are the queries of t2i and regions those of i2t.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from aoq.models.blocks import Block
from aoq.models.normalise import clipped_unit, l1_normalise
from aoq.models.options import Aggregation, Direction, Normalisation

SLOPE = 0.1
FLOOR = 1e-37  # near the smallest normal float32: a squared norm below it is that of a zero vector
QUERY = {"t2i": 1, "i2t": 3}
CONTEXT = {"t2i": 3, "i2t": 1}


def attention(
    block: Block, *, direction: Direction, temperature: float, normalisation: Normalisation = "clipped_l2norm"
) -> Float[Tensor, "C W I R"]:
    """Compute the weight of every context fragment for every query; weights sum to 1 over the real context.

    a = softmax over the context of temperature * x, where x are the products normalised along the queries.
    """
    products = normalise_products(block, direction=direction, normalisation=normalisation)
    return masked_softmax(temperature * products, block.mask(CONTEXT[direction]), CONTEXT[direction])


def normalise_products(block: Block, *, direction: Direction, normalisation: Normalisation) -> Float[Tensor, "C W I R"]:
    """Apply SCAN's `raw_feature_norm`: clip products (LeakyReLU 0.1), normalise them along the queries, or both."""
    products, query = block.products, QUERY[direction]
    if normalisation == "softmax":
        return masked_softmax(products, block.mask(query), query)
    slope = SLOPE if normalisation.startswith("clipped") else 1.0
    if normalisation.endswith("l2norm"):
        # No epsilon: the products of a single query must be exactly 1 or -1, so that equal ones stay equal (BFAN).
        return clipped_unit(products, query, slope)
    products = products if slope == 1 else F.leaky_relu(products, slope)
    return l1_normalise(products, query) if normalisation.endswith("l1norm") else products


def attended_cosine(
    block: Block, weights: Float[Tensor, "C W I R"], *, direction: Direction
) -> Float[Tensor, "C W I"] | Float[Tensor, "C I R"]:
    """Compute the cosine of each query and the weighted sum of its context; 0 where either is a zero vector."""
    context = CONTEXT[direction]
    numerator = (weights * block.products).sum(context)
    norm = block.word_norm.unsqueeze(2) if direction == "t2i" else block.regions.norm
    return numerator * inverse_root(block.squared_norm(weights, context)) / norm


def inverse_root(square: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Compute 1 / sqrt(x), and 0 for the squared norm of a zero vector."""
    return square.masked_fill(square <= FLOOR, torch.inf).rsqrt()


def aggregate(
    values: Float[Tensor, "C W_or_I I_or_R"],
    block: Block,
    *,
    direction: Direction,
    aggregation: Aggregation,
    temperature: float = 1.0,
) -> Float[Tensor, "C I"]:
    """Aggregate all queries of a pair: mean, sum, maximum, or log(sum exp(temperature * x)) / temperature."""
    dim, mask = (1, block.word_mask) if direction == "t2i" else (2, block.regions.mask)
    if mask is not None and direction == "t2i":
        mask = mask.unsqueeze(2)
    if aggregation in ("Mean", "Sum"):
        total = values.sum(dim) if mask is None else values.masked_fill(~mask, 0).sum(dim)
        if aggregation == "Sum":
            return total
        return total / (values.shape[dim] if mask is None else mask.sum(dim).clamp_min(1))
    if mask is not None:  # where nothing is real, the zero vectors are compared: -inf has no gradient
        values = values.masked_fill(~mask & mask.any(dim, keepdim=True), -torch.inf)
    return values.amax(dim) if aggregation == "Max" else (temperature * values).logsumexp(dim) / temperature


def masked_softmax(x: Float[Tensor, "*axes"], mask: Bool[Tensor, "*masks"] | None, dim: int) -> Float[Tensor, "*axes"]:
    """Compute softmax(x) along `dim` over the entries whose mask is True; 0 elsewhere."""
    if mask is None:
        return x.softmax(dim)
    # Not -inf: fragments without any real context would be NaN.
    return x.masked_fill(~mask, torch.finfo(x.dtype).min).softmax(dim).masked_fill(~mask, 0)
