"""Triplet losses with a margin of their own for every pair, and labels that say how far a pair is to be trusted.

NCR: Learning with Noisy Correspondence for Cross-modal Matching (Huang et al., NeurIPS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aoq.pipeline.losses.hinge import online_negative
from aoq.pipeline.losses.similarities import LossValue, Similarities

BASE = 10.0
"""How much the exponential soft margin bends: NCR's m."""
TINY = 1e-12

SOFT_MARGINS: dict[str, Callable[[Tensor], Tensor]] = {
    "exponential": lambda labels: (BASE**labels - 1) / (BASE - 1),
    "linear": lambda labels: labels,
    "sin": lambda labels: torch.sin(math.pi * labels - math.pi / 2) / 2 + 0.5,
}
"""Which share of the margin a pair with a label from 0 (wrong) to 1 (right) keeps."""


class Margins(NamedTuple):
    """The margin between an anchor's own pair (rows) and each negative (columns); images are anchors, then captions."""

    to_captions: Float[Tensor, "#batch #batch"]
    to_images: Float[Tensor, "#batch #batch"]


def soft_margins(labels: Float[Tensor, "*shape"], *, margin: float, kind: str) -> Float[Tensor, "*shape"]:
    """The part of the margin that the labels leave.

    >>> soft_margins(torch.tensor([0.0, 0.5, 1.0]), margin=0.2, kind="exponential")
    tensor([0.0000, 0.0481, 0.2000])
    """
    return margin * SOFT_MARGINS[kind](labels)


def own_margins(margins: Float[Tensor, " batch"]) -> Margins:
    """Pair i's margin where its image is the anchor, and where its caption is."""
    return Margins(margins[:, None], margins[:, None])


def row_margins(margins: Float[Tensor, "#batch #batch"]) -> Margins:
    """One matrix, of image rows and caption columns, for both directions, as the released code of NCR has it.

    A caption as the anchor gets the margins of the images that it is compared with, in place of its own.
    """
    return Margins(margins, margins.T)


Direction = tuple[Float[Tensor, "batch batch"], Bool[Tensor, "batch batch"]]


def differences(pairs: Similarities, margins: Margins) -> list[Direction]:
    """margin - S(anchor, own) + S(anchor, candidate) and which candidates are positives, a row an anchor.

    Images are anchors, then captions.
    """
    directions = [(pairs.matrix, pairs.is_positive), (pairs.matrix.T, pairs.is_positive.T)]
    return [
        (margin - pairs.positive[:, None] + similarity, is_positive)
        for (similarity, is_positive), margin in zip(directions, margins, strict=True)
    ]


def pair_losses(pairs: Similarities, *, margin: float) -> Float[Tensor, " batch"]:
    """What each pair loses on average to its batch: the mean violation of its image and that of its caption.

    The mean is over the whole batch, the pair itself among it.

    >>> matrix = torch.tensor([[0.9, 0.1], [0.8, 0.3]])
    >>> pair_losses(Similarities(matrix, torch.eye(2).bool()), margin=0.2)
    tensor([0.0500, 0.3500])
    """
    margins = own_margins(torch.full_like(pairs.positive, margin))
    of_images, of_captions = (
        difference.clamp(min=0).masked_fill(is_positive, 0.0) for difference, is_positive in differences(pairs, margins)
    )
    return of_images.mean(dim=1) + of_captions.mean(dim=1)


def mean_triplet(pairs: Similarities, *, margin: float) -> LossValue:
    """NCR's warm-up: every negative of the batch, and of each anchor's their mean."""
    total = pair_losses(pairs, margin=margin).sum()
    return LossValue(total, {"online": total.detach()})


def soft_triplet(pairs: Similarities, *, margins: Margins) -> LossValue:
    """The negative that violates its margin most, in both directions; a mean, at a lower `hardness` of the pairs."""
    total = pairs.matrix.new_zeros(())
    for difference, is_positive in differences(pairs, margins):
        total = total + online_negative(difference, is_positive, hardness=pairs.hardness).clamp(min=0).sum()
    return LossValue(total, {"online": total.detach(), "margin": margins.to_captions.mean().detach()})


def predicted_labels(pairs: Similarities, *, margin: float) -> Float[Tensor, " batch"]:
    """From 0 to 1, how well a network finds each pair matched, compared with the best of the batch.

    P = theta / tau, at most 1: theta is what a pair's mean violation leaves of the margin, and tau the mean of the
    B // 10 + 1 largest theta.

    >>> matrix = torch.tensor([[0.9, 0.1], [0.8, 0.3]])
    >>> predicted_labels(Similarities(matrix, torch.eye(2).bool()), margin=0.2)
    tensor([1.0000, 0.1429])
    """
    left = (margin - pair_losses(pairs, margin=margin) / 2).clamp(0, margin)
    best = left.topk(len(left) // 10 + 1).values.mean()
    return (left / best.clamp_min(TINY)).clamp(max=1)


def refined_labels(
    probabilities: Float[Tensor, " batch"] | Float[Tensor, "batch 1"], predicted: Float[Tensor, " batch"]
) -> Float[Tensor, "*rows batch"]:
    """The label of a pair that is clean with this probability: w + (1 - w) P.

    The released code of NCR broadcasts: with probabilities (B, 1), entry (i, j) mixes pair i's w with pair j's P.
    """
    return probabilities + (1 - probabilities) * predicted
