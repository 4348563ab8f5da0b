"""Triplet losses with a margin per pair, scaled by a label from 0 (wrong pair) to 1 (right pair).

NCR: Learning with Noisy Correspondence for Cross-modal Matching (Huang et al., NeurIPS 2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.pipeline.losses.hinge import online_negative
from aoq.pipeline.losses.similarities import LossValue, Similarities

SOFT_MARGINS: dict[str, Callable[[Tensor], Tensor]] = {
    "exponential": lambda labels: (10.0**labels - 1) / 9.0,
    "linear": lambda labels: labels,
    "sin": lambda labels: torch.sin(math.pi * labels - math.pi / 2) / 2 + 0.5,
}
"""Fraction of the margin that a pair with a label from 0 (wrong) to 1 (right) keeps."""


Margins = tuple[Float[Tensor, "#batch #batch"], Float[Tensor, "#batch #batch"]]
"""Margins between an anchor's own pair (rows) and each negative (columns); images are anchors, then captions."""


def soft_margins(labels: Float[Tensor, "*shape"], *, margin: float, kind: str) -> Float[Tensor, "*shape"]:
    """Scale the margin by the labels.

    >>> soft_margins(torch.tensor([0.0, 0.5, 1.0]), margin=0.2, kind="exponential")
    tensor([0.0000, 0.0481, 0.2000])
    """
    return margin * SOFT_MARGINS[kind](labels)


def own_margins(margins: Float[Tensor, " batch"]) -> Margins:
    """Use pair i's margin for its image as the anchor, and for its caption."""
    return margins[:, None], margins[:, None]


def row_margins(margins: Float[Tensor, "#batch #batch"]) -> Margins:
    """Use one matrix, of image rows and caption columns, for both directions, as NCR's released code does.

    A caption as the anchor has the margins of the images that it is compared with, instead of its own.
    """
    return margins, margins.T


def violations(pairs: Similarities, margins: Margins) -> list[tuple[Tensor, Tensor]]:
    """Compute margin - S(anchor, own) + S(anchor, candidate), and mark the positives, one row per anchor."""
    return [
        (margin - pairs.positive[:, None] + similarity, is_positive)
        for (similarity, is_positive), margin in zip(pairs.directions, margins, strict=True)
    ]


def pair_losses(pairs: Similarities, *, margin: float) -> Float[Tensor, " batch"]:
    """Return the loss of each pair: its image's mean violation over the batch, itself included, and its caption's.

    >>> matrix = torch.tensor([[0.9, 0.1], [0.8, 0.3]])
    >>> pair_losses(Similarities(matrix, torch.eye(2).bool()), margin=0.2)
    tensor([0.0500, 0.3500])
    """
    margins = own_margins(torch.full_like(pairs.positive, margin))
    of_images, of_captions = (
        difference.clamp(min=0).masked_fill(is_positive, 0.0).mean(dim=1)
        for difference, is_positive in violations(pairs, margins)
    )
    return of_images + of_captions


def mean_triplet(pairs: Similarities, *, margin: float) -> LossValue:
    """Sum each anchor's mean over all in-batch negatives: NCR's warm-up."""
    total = pair_losses(pairs, margin=margin).sum()
    return LossValue(total, {"online": total.detach()})


def soft_triplet(pairs: Similarities, *, margins: Margins) -> LossValue:
    """Sum the hardest violations of both directions, or means if the pairs have a lower `hardness`."""
    total = pairs.matrix.new_zeros(())
    for difference, is_positive in violations(pairs, margins):
        total = total + online_negative(difference, is_positive, hardness=pairs.hardness).clamp(min=0).sum()
    return LossValue(total, {"online": total.detach(), "margin": margins[0].mean().detach()})


def predicted_labels(pairs: Similarities, *, margin: float) -> Float[Tensor, " batch"]:
    """Label each pair from 0 to 1 by how well a network matches it, relative to the best pairs of the batch.

    P = theta / tau, at most 1: theta is the margin less the pair's mean violation, and tau the mean of the
    B // 10 + 1 largest theta.

    >>> matrix = torch.tensor([[0.9, 0.1], [0.8, 0.3]])
    >>> predicted_labels(Similarities(matrix, torch.eye(2).bool()), margin=0.2)
    tensor([1.0000, 0.1429])
    """
    left = (margin - pair_losses(pairs, margin=margin) / 2).clamp(0, margin)
    best = left.topk(len(left) // 10 + 1).values.mean()
    return (left / best.clamp_min(1e-12)).clamp(max=1)


def refined_labels(
    probabilities: Float[Tensor, " batch"] | Float[Tensor, "batch 1"], predicted: Float[Tensor, " batch"]
) -> Float[Tensor, "*rows batch"]:
    """Label pairs that are clean with probability w and have the prediction P: w + (1 - w) P.

    The released code of NCR broadcasts: with probabilities (B, 1), entry (i, j) mixes pair i's w with pair j's P.
    """
    return probabilities + (1 - probabilities) * predicted
