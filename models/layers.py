"""Layers that several models share: norms that survive zero vectors, masks over fragments, the GRU over words."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.models.base import Captions, Images
from aoq.models.packing import Packing, ranks

Fragments = Float[Tensor, "items fragments size"]
Mask = Bool[Tensor, "items fragments"] | None


class Projection(nn.Linear):
    """The linear layer on region features: weights U(-r, r) with r = sqrt(6 / (in + out)), bias 0."""

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)


def zero_masked(fragments: Fragments, mask: Mask) -> Fragments:
    """Set fragments to exactly zero where the mask is False, NaN included."""
    return fragments if mask is None else fragments.masked_fill(~mask.unsqueeze(-1), 0)


def masked_mean(regions: Fragments, mask: Mask) -> Float[Tensor, "items size"]:
    """Average each image's real regions.

    >>> masked_mean(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[2.]])
    """
    if mask is None:
        return regions.mean(1)
    return zero_masked(regions, mask).sum(1) / count(mask).unsqueeze(-1)


def group_by_group(function: Callable[..., Tensor], groups: int, *tensors: Tensor | None) -> Tensor:
    """Apply a `function` with batch statistics to each of `groups` equal parts of a batch by itself.

    >>> group_by_group(lambda x: x - x.mean(), 2, torch.tensor([1.0, 3.0, 5.0, 5.0]))
    tensor([-1.,  1.,  0.,  0.])
    """
    if groups == 1:
        return function(*tensors)
    parts = [[None] * groups if tensor is None else tensor.chunk(groups) for tensor in tensors]
    return torch.cat([function(*part) for part in zip(*parts, strict=True)])


def count(mask: Bool[Tensor, "images regions"]) -> Int[Tensor, " images"]:
    """Return the number of real regions of each image, at least 1."""
    return mask.sum(1).clamp_min(1)


def compact(images: Images) -> tuple[Images, Int[Tensor, " images"] | None]:
    """Move real regions first, in their order; zero masked ones; cut off columns that no image needs.

    Returns also their number, at least 1 and on the CPU; None without a mask.
    """
    real = images.real_here()
    if images.mask is None or real is None:
        return images, None
    lengths = count(real)
    order = (~images.mask).to(torch.uint8).argsort(dim=1, stable=True)[:, : int(lengths.max())]
    mask = images.mask.gather(1, order)
    features = images.features.gather(1, order.unsqueeze(-1).expand(-1, -1, images.features.shape[2]))
    here = ranks(order.shape[1], real.sum(1))
    return Images(zero_masked(features, mask), mask, groups=images.groups, mask_here=here), lengths


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules())


class TextEncoder(nn.Module):
    """Word embeddings, then a GRU over each caption's own length; two directions are averaged.

    Captions come in any order of lengths, and padding never enters the GRU. `dropout` applies to word embeddings.
    """

    def __init__(
        self, vocabulary_size: int, *, word_size: int, embedding_size: int, bidirectional: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary_size, word_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.recurrence = nn.GRU(word_size, embedding_size, batch_first=True, bidirectional=bidirectional)

    def last(self, captions: Captions) -> Float[Tensor, "captions size"]:
        """Return the state at the last word (in the backward direction, at the first)."""
        _, _, states = self._read(captions)
        return states.mean(0) if self.recurrence.bidirectional else states[0]

    def states(self, captions: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        """Return the state at every word, zero at padding, and the mask of real words."""
        packing, states, _ = self._read(captions)
        if self.recurrence.bidirectional:
            states = torch.add(*states.chunk(2, dim=1)) / 2
        words, mask = captions.real()
        return packing.padded(states, words.shape[1]), mask

    def _read(self, captions: Captions) -> tuple[Packing, Tensor, Tensor]:
        longest = int(captions.lengths.max())
        packing = Packing.build(captions.lengths, longest, captions.words.device)
        tokens = captions.words[:, :longest].flatten()[packing.places]
        return packing, *packing.run(self.recurrence, self.dropout(self.embedding(tokens)))


EPSILON = 1e-8


def l2_normalise(x: Float[Tensor, "*axes"], dim: int = -1) -> Float[Tensor, "*axes"]:
    """x / (|x| + 1e-8) along `dim`; a zero vector stays zero, and its gradient finite.

    >>> import torch
    >>> l2_normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return x / (safe_norm(x, dim) + EPSILON)


def l1_normalise(x: Float[Tensor, "*axes"], dim: int = -1) -> Float[Tensor, "*axes"]:
    """x / (sum |x| + 1e-8) along `dim`."""
    return x / (x.abs().sum(dim, keepdim=True) + EPSILON)


def safe_norm(x: Float[Tensor, "*axes"], dim: int = -1) -> Float[Tensor, "*kept"]:
    """|x| along `dim` (kept as 1), but 1 for a zero vector, where the square root has no gradient."""
    square = (x * x).sum(dim, keepdim=True)
    return square.masked_fill(square == 0, 1).sqrt()


def clipped_unit(x: Float[Tensor, "*axes"], dim: int, slope: float) -> Float[Tensor, "*axes"]:
    """y / |y| along `dim`, where y = LeakyReLU(x); a zero vector stays zero. A slope of 1 clips nothing.

    >>> import torch
    >>> clipped_unit(torch.tensor([3.0, -4.0]), 0, 1.0)
    tensor([ 0.6000, -0.8000])
    """
    clipped = x if slope == 1 else F.leaky_relu(x, slope)
    square = (clipped * clipped).sum(dim, keepdim=True)
    # In float64: on some processors the float32 root is a bit off, and a single entry would not be exactly 1 (BFAN).
    return clipped / square.masked_fill(square == 0, 1).double().sqrt().to(x.dtype)
