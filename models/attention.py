"""Cross attention between words and regions (Lee et al., ECCV 2018) without forming attended vectors.

With attention weights a over the context's fragments v, and a query q,

    cos(q, sum_k a_k v_k) = sum_k a_k <q, v_k> / (|q| sqrt(a^T G a)),     G_kl = <v_k, v_l>,

so the word-region products and small Gram matrices are enough. Everything here works on a `Block`; of its axes
(captions, words, images, regions), words are the queries of t2i and regions those of i2t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aoq.models.base import AttentionDirection
from aoq.models.layers import safe_norm

FLOOR = 1e-37  # near the smallest normal float32: a squared norm below it is that of a zero vector
SHORT = 16  # on a CPU, torch's softmax takes ten times as long per number on shorter rows, which it does not vectorise
QUERY_AXIS = {"t2i": 1, "i2t": 3}
CONTEXT_AXIS = {"t2i": 3, "i2t": 1}


def real_or_lowest(x: Float[Tensor, "*axes"], mask: Bool[Tensor, "*masks"] | None, dim: int) -> Float[Tensor, "*axes"]:
    """Set x to -inf where the mask is False; where nothing along `dim` is real, leave it: -inf has no gradient."""
    return x if mask is None else x.masked_fill(~mask & mask.any(dim, keepdim=True), -torch.inf)


def masked_softmax(x: Float[Tensor, "*axes"], mask: Bool[Tensor, "*masks"] | None, dim: int) -> Float[Tensor, "*axes"]:
    """Compute softmax(x) along `dim` over the entries whose mask is True; 0 elsewhere."""
    if mask is not None:  # not -inf: fragments without any real context would be NaN
        x = x.masked_fill(~mask, torch.finfo(x.dtype).min)
    if dim == x.dim() - 1 and 0 < x.shape[dim] < SHORT and x.dtype == torch.float32:
        powers = (x - x.detach().amax(dim, keepdim=True)).exp()
        shares = powers / powers.sum(dim, keepdim=True)
    else:
        shares = x.softmax(dim)
    return shares if mask is None else shares.masked_fill(~mask, 0)


@dataclass(frozen=True)
class Regions:
    """Image side of blocks: one group of images for all captions (G = 1), or one group per caption (G = C).

    Masked regions are zero vectors. `pooled` is a model's single vector per image, if it has one.
    """

    vectors: Float[Tensor, "G I R D"]
    mask: Bool[Tensor, "G I R"] | None
    pooled: Float[Tensor, "G I P"] | None
    _memo: dict[Callable[[Tensor], Tensor], Tensor] = field(default_factory=dict)

    def once(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute `function(vectors)` once for all blocks with these images."""
        if function not in self._memo:
            self._memo[function] = function(self.vectors)
        return self._memo[function]

    @cached_property
    def gram(self) -> Float[Tensor, "G I R R"]:
        return self.vectors @ self.vectors.transpose(2, 3)

    @cached_property
    def norm(self) -> Float[Tensor, "G I R"]:
        return safe_norm(self.vectors).squeeze(-1)


@dataclass(frozen=True)
class Block:
    """C captions against I images each, `products[c, w, i, r]` = <word w of caption c, region r of image i>.

    In a matrix all captions face the same images and have equally many words, so there is no `word_mask`. In
    an aligned pair list each caption faces one image of its own (G = C, I = 1).
    """

    words: Float[Tensor, "C W D"]
    word_mask: Bool[Tensor, "C W"] | None
    pooled: Float[Tensor, "C P"] | None
    regions: Regions
    products: Float[Tensor, "C W I R"]
    is_aligned: bool
    """True for a pair list."""

    @cached_property
    def word_norm(self) -> Float[Tensor, "C W"]:
        return safe_norm(self.words).squeeze(-1)

    @cached_property
    def word_gram(self) -> Float[Tensor, "C W W"]:
        return torch.bmm(self.words, self.words.transpose(1, 2))

    def mask(self, axis: int) -> Bool[Tensor, "#C #W #I #R"] | None:
        """Mask of words (axis 1) or regions (axis 3), broadcastable to the products; None if all are real."""
        if axis == 1:
            return None if self.word_mask is None else self.word_mask[:, :, None, None]
        return None if self.regions.mask is None else self.regions.mask.unsqueeze(1)

    def real_products(self, axis: int) -> Float[Tensor, "C W I R"]:
        """Return the products, -inf at masked context (words: axis 1, regions: axis 3) beside a real one."""
        return real_or_lowest(self.products, self.mask(axis), axis)

    def attended_cosine(
        self, weights: Float[Tensor, "C W I R"], direction: AttentionDirection
    ) -> Float[Tensor, "C W I"] | Float[Tensor, "C I R"]:
        """Compute the cosine of each query and the weighted sum of its context; 0 where either is a zero vector."""
        context = CONTEXT_AXIS[direction]
        norm = self.word_norm.unsqueeze(2) if direction == "t2i" else self.regions.norm
        return (weights * self.products).sum(context) * self.inverse_norm(weights, context) / norm

    def inverse_norm(self, weights: Float[Tensor, "C W I R"], axis: int) -> Float[Tensor, "C W_or_I I_or_R"]:
        """Compute 1 / |.| of weighted sums of regions per word (axis 3) or vice versa (axis 1); 0 for a zero vector."""
        if axis == 1:
            through = torch.einsum("cvir,cvw->cwir", weights, self.word_gram)
        elif self.is_aligned:
            through = torch.einsum("cwis,cisr->cwir", weights, self.regions.gram)
        else:
            through = torch.einsum("cwis,isr->cwir", weights, self.regions.gram[0])
        square = (weights * through).sum(axis)
        return square.masked_fill(square <= FLOOR, torch.inf).rsqrt()
