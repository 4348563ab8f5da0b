"""Parts that image encoders share: the projection of region features, and masks over regions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from aoq.models.base import Images
from aoq.models.packing import ranks

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
