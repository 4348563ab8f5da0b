"""A block of pairs: all words of some captions against all regions of some images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aoq.models.normalise import safe_norm


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

    def squared_norm(self, weights: Float[Tensor, "C W I R"], axis: int) -> Float[Tensor, "C W_or_I I_or_R"]:
        """Compute |.|^2 of weighted sums: of regions (axis 3) for each word, or of words (axis 1) for each region."""
        if axis == 1:
            through = torch.einsum("cvir,cvw->cwir", weights, self.word_gram)
        elif self.is_aligned:
            through = torch.einsum("cwis,cisr->cwir", weights, self.regions.gram)
        else:
            through = torch.einsum("cwis,isr->cwir", weights, self.regions.gram[0])
        return (weights * through).sum(axis)
