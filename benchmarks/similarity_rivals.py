"""Rivals of `similarity.py`: the papers' formulas with every attended vector formed, in two ways.

A loop over captions is the way of the official implementations: each caption, cut to its true length, against all
images at once. The padded einsum takes all pairs at once, padding masked. The formulas follow the descriptions of the
models and are written once, on `Pairs`, the input of one iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from aoq.models.base import Code, MatchingModel, real_fragments
from aoq.models.bfan import BFAN
from aoq.models.imram import IMRAM
from aoq.models.naaf import NAAF
from aoq.models.pfan import PFAN
from aoq.models.scan import SCAN
from aoq.models.sgraf import SAF, SGR

SLOPE, EPSILON, SGRAF_TEMPERATURE = 0.1, 1e-8, 9.0
WORDS, REGIONS = -2, -1  # the axes of products and weights
QUERY, CONTEXT = {"t2i": WORDS, "i2t": REGIONS}, {"t2i": REGIONS, "i2t": WORDS}


@dataclass(frozen=True)
class Pairs:
    """All images with one caption, or (with an axis C, and a mask) with all captions, padded to the longest."""

    regions: Float[Tensor, "I R D"]
    words: Float[Tensor, "*C W D"]
    mask: Bool[Tensor, "C W"] | None
    pooled_images: Float[Tensor, "I P"] | None
    pooled_captions: Float[Tensor, "*C P"] | None

    def products(self) -> Float[Tensor, "I *C W R"]:
        return torch.einsum("ird,...wd->i...wr", self.regions, self.words)

    def products_with(self, queries: Float[Tensor, "I *C some D"], direction: str) -> Float[Tensor, "I *C W R"]:
        """Products for queries that each pair has of its own instead of its words (t2i) or regions (i2t)."""
        if direction == "t2i":
            return torch.einsum("i...wd,ird->i...wr", queries, self.regions)
        return torch.einsum("i...rd,...wd->i...wr", queries, self.words)

    def attended(self, weights: Float[Tensor, "I *C W R"], direction: str) -> Float[Tensor, "I *C some D"]:
        """Weighted sum of regions for each word (t2i), or of words for each region (i2t)."""
        if direction == "t2i":
            return torch.einsum("i...wr,ird->i...wd", weights, self.regions)
        return torch.einsum("i...wr,...wd->i...rd", weights, self.words)

    def queries(self, direction: str) -> Float[Tensor, "*#pairs some D"]:
        """Words (t2i) or regions (i2t), to be broadcast to their context."""
        if direction == "t2i":
            return self.words.unsqueeze(0)
        return self.regions if self.mask is None else self.regions.unsqueeze(1)

    def masked(self, x: Float[Tensor, "I *C W R"], axis: int, value: float) -> Float[Tensor, "I *C W R"]:
        """`value` at padding, if there can be any along this axis."""
        return x if self.mask is None or axis == REGIONS else x.masked_fill(~self.mask.unsqueeze(-1), value)

    def mean(self, values: Float[Tensor, "*pairs some"], direction: str) -> Float[Tensor, "*pairs"]:
        if self.mask is None or direction == "i2t":
            return values.mean(-1)
        return values.masked_fill(~self.mask, 0).sum(-1) / self.mask.sum(-1)


def loop(model: MatchingModel, images: Code, captions: Code) -> Float[Tensor, "images captions"]:
    """Score one caption per iteration."""
    formula, columns = FORMULAS[type(model)], []
    for c, length in enumerate(real_fragments(captions).sum(1).tolist()):
        pooled = None if captions.pooled is None else captions.pooled[c]
        columns.append(formula(model, Pairs(images.vectors, captions.vectors[c, :length], None, images.pooled, pooled)))
    return torch.stack(columns, dim=1)


def einsum(model: MatchingModel, images: Code, captions: Code) -> Float[Tensor, "images captions"]:
    """Score all pairs at once."""
    mask = real_fragments(captions)
    return FORMULAS[type(model)](model, Pairs(images.vectors, captions.vectors, mask, images.pooled, captions.pooled))


RIVALS = {"loop": loop, "einsum": einsum}


def similarity(side: str, model: MatchingModel, images: Code, captions: Code) -> Tensor:
    return model.similarity(images, captions) if side == "ours" else RIVALS[side](model, images, captions)


def agreement(model: MatchingModel, regions: int, size: int) -> float:
    """Largest difference of a rival's values and gradients to ours in float64; an error if it exceeds rounding."""
    images, captions = make_codes(5, 7, regions, size, dtype=torch.float64)
    weights, model, found = torch.randn(5, 7, dtype=torch.float64), model.double(), []
    for side in ("ours", *RIVALS):
        result = similarity(side, model, images, captions)
        rest = gradients(model, images, captions, (result * weights).sum(), materialize_grads=True)
        found.append([result.detach(), *rest])
    for theirs in found[1:]:  # a division by |x| here may be by |x| + 1e-8 there
        assert_close(theirs, found[0], rtol=1e-5, atol=1e-5)
    return max(float((a - b).abs().max()) for theirs in found[1:] for a, b in zip(theirs, found[0], strict=True))


def gradients(model: MatchingModel, images: Code, captions: Code, objective: Tensor, **how: bool) -> tuple[Tensor, ...]:
    """Gradients of both codes and all parameters, also of the encoders, on which nothing depends."""
    codes = [part for code in (images, captions) for part in (code.vectors, code.pooled) if part is not None]
    return torch.autograd.grad(objective, [*codes, *model.parameters()], **how)


def make_codes(images: int, captions: int, regions: int, size: int, **how: Any) -> tuple[Code, Code]:
    """Unit vectors that require gradients; padding is zero."""
    generator = torch.Generator().manual_seed(0)

    def vectors(*shape: int) -> Tensor:
        return F.normalize(torch.randn(*shape, size, generator=generator), dim=-1)

    lengths = caption_lengths(captions)
    mask = torch.arange(int(lengths.max())) < lengths.unsqueeze(1)
    words = vectors(*mask.shape) * mask.unsqueeze(-1)
    parts = [vectors(images, regions), vectors(images), words, vectors(captions)]
    regions_, pooled, words, pooled_words = (part.to(**how).requires_grad_() for part in parts)
    return Code(regions_, None, pooled), Code(words, mask.to(how.get("device")), pooled_words)


def caption_lengths(count: int) -> Tensor:
    drawn = np.random.default_rng(0).lognormal(np.log(13.3), 0.33, count)
    return torch.from_numpy(drawn.round().clip(6, 30).astype(int))


def attention(
    products: Float[Tensor, "I *C W R"], pairs: Pairs, *, direction: str, temperature: float
) -> Float[Tensor, "I *C W R"]:
    """SCAN's attention: products clipped, normalised along the queries, softmax over the context."""
    clipped = pairs.masked(F.leaky_relu(products, SLOPE), QUERY[direction], 0)
    logits = temperature * unit(clipped, QUERY[direction])
    return pairs.masked(logits, CONTEXT[direction], -torch.inf).softmax(CONTEXT[direction])


def unit(x: Float[Tensor, "*axes"], dim: int = -1) -> Float[Tensor, "*axes"]:
    return x / (torch.linalg.vector_norm(x, dim=dim, keepdim=True) + EPSILON)


def cosine(x: Float[Tensor, "*#axes D"], y: Float[Tensor, "*#axes D"]) -> Float[Tensor, "*axes"]:
    norms = torch.linalg.vector_norm(x, dim=-1) * torch.linalg.vector_norm(y, dim=-1)
    return (x * y).sum(-1) / norms.clamp_min(EPSILON)


def scan(model: SCAN, pairs: Pairs) -> Float[Tensor, "*pairs"]:
    (direction,) = model.directions
    weights = attention(pairs.products(), pairs, direction=direction, temperature=model.temperature)
    cosines = cosine(pairs.queries(direction), pairs.attended(weights, direction))
    scaled = (model.temperature_lse * cosines).unsqueeze(-1)
    soft_maximum = pairs.masked(scaled, QUERY[direction], -torch.inf).squeeze(-1).logsumexp(-1)
    return soft_maximum / model.temperature_lse


def pfan(model: PFAN, pairs: Pairs) -> Float[Tensor, "*pairs"]:
    weights = attention(pairs.products(), pairs, direction="t2i", temperature=model.temperature)
    cosines = cosine(pairs.queries("t2i"), pairs.attended(weights, "t2i"))
    return pairs.mean(cosines, "t2i") + 0.5 * pairs.mean(weights.amax(REGIONS), "t2i")


def bfan(model: BFAN, pairs: Pairs) -> Float[Tensor, "*pairs"]:
    products, found = pairs.products(), []
    for direction, context in CONTEXT.items():
        weights = attention(products, pairs, direction=direction, temperature=model.temperature)
        kept = weights * is_relevant(weights.detach(), pairs, context, model.focal)
        kept = kept / kept.sum(context, keepdim=True).clamp_min(EPSILON)  # padding, where all is equal, keeps nothing
        found.append(pairs.mean(cosine(pairs.queries(direction), pairs.attended(kept, direction)), direction))
    return found[0] + found[1]


def is_relevant(weights: Tensor, pairs: Pairs, context: int, focal: str) -> Bool[Tensor, "I *C W R"]:
    """Relevance: above the mean ("equal"), or sum_k (a_j - a_k) sqrt(a_k) > 0 ("prob"), in its closed form."""
    if focal == "equal":
        count = pairs.masked(torch.ones_like(weights), context, 0).sum(context, keepdim=True)
        return weights * count > weights.sum(context, keepdim=True)
    root = weights.sqrt()
    return weights * root.sum(context, keepdim=True) > (weights * root).sum(context, keepdim=True)


def naaf(model: NAAF, pairs: Pairs) -> Float[Tensor, "*pairs"]:
    """NAAF in training mode, with the threshold of the step."""
    products = pairs.products()
    negative = (products.amax(REGIONS) - model.threshold).clamp_max(0)
    above = (model.temperature * (products - model.threshold)).exp() * (products > model.threshold)
    attended = pairs.attended(above / above.sum(REGIONS, keepdim=True).clamp_min(EPSILON), "t2i")
    norm = torch.linalg.vector_norm(attended, dim=-1).clamp_min(EPSILON)  # zero if no region is above
    positive = (pairs.queries("t2i") * attended).sum(-1) / norm
    weights = attention(products, pairs, direction="t2i", temperature=model.temperature)
    return pairs.mean(negative + positive + (weights * products).sum(REGIONS), "t2i")


def nodes(model: SGR | SAF, pairs: Pairs) -> Float[Tensor, "*pairs nodes S"]:
    """Similarity vectors: the global one, then one per word."""
    weights = attention(pairs.products(), pairs, direction="t2i", temperature=SGRAF_TEMPERATURE)
    difference = unit(pairs.attended(weights, "t2i")) - pairs.queries("t2i")
    local = unit(model.local_similarity(difference.square()))
    pooled = pairs.pooled_images if pairs.mask is None else pairs.pooled_images.unsqueeze(1)
    whole = unit(model.global_similarity((pooled - pairs.pooled_captions).square()))
    return torch.cat([whole.unsqueeze(-2), local], dim=-2)


def node_mask(pairs: Pairs) -> Bool[Tensor, "C nodes"]:
    return F.pad(pairs.mask, (1, 0), value=True)


def sgr(model: SGR, pairs: Pairs) -> Float[Tensor, "*pairs"]:
    x = nodes(model, pairs)
    for layer in model.reasoning:
        edges = layer.query(x) @ layer.key(x).transpose(-1, -2)
        if pairs.mask is not None:
            edges = edges.masked_fill(~node_mask(pairs).unsqueeze(1), -torch.inf)
        x = layer.output(edges.softmax(-1) @ x).relu()
    return model.score(x[..., 0, :]).squeeze(-1).sigmoid()


def saf(model: SAF, pairs: Pairs) -> Float[Tensor, "*pairs"]:
    """SAF in training mode: the gate's statistics are those of one caption with all images."""
    x, norm = nodes(model, pairs), model.norm
    logits = model.gate(x).squeeze(-1)
    if pairs.mask is None:
        gates = norm(logits.unsqueeze(1)).squeeze(1).sigmoid()
    else:
        mask = node_mask(pairs)
        share = mask.to(logits.dtype) / (mask.sum(1, keepdim=True) * len(logits))
        mean = (logits * share).sum((0, 2), keepdim=True)
        variance = ((logits - mean).square() * share).sum((0, 2), keepdim=True)
        normalised = (logits - mean) * (variance + norm.eps).rsqrt() * norm.weight + norm.bias
        gates = normalised.sigmoid().masked_fill(~mask, 0)
    gates = gates / (gates.sum(-1, keepdim=True) + EPSILON)
    return model.score(unit((gates.unsqueeze(-2) @ x).squeeze(-2))).squeeze(-1).sigmoid()


def imram(model: IMRAM, pairs: Pairs) -> Float[Tensor, "*pairs"]:
    rounds = []
    for direction in model.directions:
        memory, original = model.memory[direction], pairs.queries(direction)
        weight = torch.cat([memory.own.weight, memory.seen.weight], dim=1)
        products, queries = pairs.products(), original
        for step in range(model.steps):
            weights = attention(products, pairs, direction=direction, temperature=model.temperature)
            attended = pairs.attended(weights, direction)
            rounds.append(pairs.mean(cosine(original, attended), direction))
            if step < model.steps - 1:  # nothing reads what the last round would refine
                both = torch.cat([queries.expand_as(attended), attended], dim=-1)
                gate, update = F.linear(both, weight, memory.own.bias).chunk(2, dim=-1)
                queries = torch.lerp(update.tanh(), queries, gate.sigmoid())
                products = pairs.products_with(queries, direction)
    return torch.stack(rounds).sum(0)


FORMULAS: dict[type[MatchingModel], Callable[[Any, Pairs], Float[Tensor, "*pairs"]]] = {
    SCAN: scan,
    PFAN: pfan,
    BFAN: bfan,
    NAAF: naaf,
    SGR: sgr,
    SAF: saf,
    IMRAM: imram,
}
