"""Tiles of near products on a device, and the pairs of them that either side keeps."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Float32, Int32, Int64
from torch import Tensor

GROUP = 16  # images of a tile that are looked through together; usually none of their scores is kept
PORTION = 16  # one in this many groups is looked at in detail at a time, so that ties do not take memory by the tile

Pairs = tuple[Int32[Tensor, " pairs"], Int32[Tensor, " pairs"], Float32[Tensor, " pairs"]]
"""Anchors, candidates and near scores."""


class Keeper:
    """Pairs that the anchors of one side keep; an anchor that keeps more than `most` keeps no more.

    It is searched again, as it has too many ties: its limit becomes infinite.
    """

    def __init__(self, limits: Float32[Tensor, " anchors"], most: int) -> None:
        self.limits = limits.clone()
        self._counts = torch.zeros(len(limits), dtype=torch.int64, device=limits.device)
        self._most = most
        none = torch.empty(0, dtype=torch.int32, device=limits.device)
        self._none = none, none, none.float()
        self._parts: list[Pairs] = [self._none]

    def add(
        self,
        anchors: Int64[Tensor, " pairs"],
        candidates: Int64[Tensor, " pairs"],
        scores: Float32[Tensor, " pairs"],
    ) -> None:
        """Keep the pairs that reach their anchor's limit, or are not numbers."""
        kept = (~(scores < self.limits[anchors])).nonzero().squeeze(1)  # once: each waits for the device
        anchors, candidates, scores = anchors[kept], candidates[kept], scores[kept]
        self._parts.append((anchors.int(), candidates.int(), scores))
        self._counts.scatter_add_(0, anchors, torch.ones_like(anchors))
        self.limits.masked_fill_(self._counts > self._most, math.inf)

    def handed_over(self) -> Pairs:
        """Hand over the pairs kept so far, and forget them; the numbers of each anchor stay."""
        anchors, candidates, scores = (torch.cat(column) for column in zip(*self._parts, strict=True))
        self._parts = [self._none]
        return anchors, candidates, scores


def scan_tile(
    images: Float[Tensor, "rows D"],
    captions: Float[Tensor, "columns D"],
    first_image: int,
    first_caption: int,
    keepers: tuple[Keeper, Keeper],
) -> None:
    """Multiply a block of images with one of captions, and hand each side's keeper what reaches its limits.

    The first keeper numbers the images from the block's first on and has a multiple of GROUP limits, infinite ones of
    images that are not there. The second has all captions, and is given the images' numbers in the whole.
    """
    by_image, by_caption = keepers
    limits = by_image.limits, by_caption.limits[first_caption : first_caption + len(captions)]
    for image, caption, score in reaching(multiply(images, captions), *limits):
        by_image.add(image, caption + first_caption, score)
        by_caption.add(caption + first_caption, image + first_image, score)


def multiply(images: Float[Tensor, "rows D"], captions: Float[Tensor, "columns D"]) -> Float[Tensor, "rows columns"]:
    return images @ captions.T


def reaching(
    scores: Float[Tensor, "rows columns"],
    image_limits: Float32[Tensor, " padded"],
    caption_limits: Float32[Tensor, " columns"],
) -> Iterator[tuple[Int64[Tensor, " pairs"], Int64[Tensor, " pairs"], Float32[Tensor, " pairs"]]]:
    """Find the pairs whose score reaches the limit of either side, in portions; limits may rise in between.

    The best score of each group comes first: a group that stays below its lowest limits is done. What is not a number
    is below no limit, so that nothing is lost by a fault.
    """
    rows, columns = scores.shape
    whole = rows - rows % GROUP
    limits = image_limits.view(-1, GROUP)
    best = scores[:whole].view(-1, GROUP, columns).amax(1)
    if whole < rows:
        best = torch.cat([best, scores[whole:].amax(0, keepdim=True)])
    is_below = best < torch.minimum(limits.amin(1)[:, None], caption_limits)
    places = is_below.logical_not_().flatten().nonzero().squeeze(1)
    members = torch.arange(GROUP, device=scores.device)
    for part in places.split(max(columns, scores.numel() // GROUP // PORTION)):
        group, caption = part // columns, part % columns
        image = group[:, None] * GROUP + members
        near = scores[image.clamp(max=rows - 1), caption[:, None]].float()
        is_kept = ~(near < torch.minimum(image_limits[image], caption_limits[caption, None])) & (image < rows)
        place, member = is_kept.nonzero(as_tuple=True)
        yield image[place, member], caption[place], near[place, member]
