"""Parts that image encoders share: the projection of region features, and masks over regions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from aoq.models.base import Images

Fragments = Float[Tensor, "items fragments size"]
Mask = Bool[Tensor, "items fragments"] | None


class Projection(nn.Linear):
    """The linear layer on region features: weights U(-r, r) with r = sqrt(6 / (in + out)), bias 0."""

    def reset_parameters(self) -> None:
        radius = math.sqrt(6 / (self.in_features + self.out_features))
        nn.init.uniform_(self.weight, -radius, radius)
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
    """Number of real regions of each image, at least 1."""
    return mask.sum(1).clamp_min(1)


def run_over(recurrence: nn.GRU, regions: Fragments, mask: Mask) -> tuple[Tensor, Tensor]:
    """Run a GRU over regions, real ones first; return its states and the last one (directions, images, state)."""
    if mask is None:
        return recurrence(regions)
    packed, last = recurrence(pack_padded_sequence(regions, count(mask).cpu(), batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(packed, batch_first=True, total_length=regions.shape[1])[0], last


def compact(images: Images) -> Images:
    """Move real regions first, in their order; zero masked ones; cut off columns that no image needs."""
    if images.mask is None:
        return images
    order = (~images.mask).to(torch.uint8).argsort(dim=1, stable=True)
    order = order[:, : max(1, int(images.mask.sum(1).max()))]
    mask = images.mask.gather(1, order)
    features = images.features.gather(1, order.unsqueeze(-1).expand(-1, -1, images.features.shape[2]))
    return Images(zero_masked(features, mask), mask, groups=images.groups)
