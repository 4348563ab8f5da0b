"""Triplet losses on in-batch negatives: all of them, or the hardest."""

from __future__ import annotations

import torch

from aoq.pipeline.losses.hinge import hardest_negative, hinge
from aoq.pipeline.losses.similarities import LossValue, Similarities


def sum_triplet(pairs: Similarities, *, margin: float) -> LossValue:
    """Every negative of the batch in both directions, AOQ eq. (1).

    L = sum over (i, t) of sum over t' [m - S(i,t) + S(i,t')]_+ + sum over i' [m - S(i,t) + S(i',t)]_+

    The figure `hardest` is what eq. (2) would cost, a pair and direction: m on the collapse plateau.
    """
    total = pairs.matrix.new_zeros(())
    for similarity, is_positive in [(pairs.matrix, pairs.is_positive), (pairs.matrix.T, pairs.is_positive.T)]:
        violation = hinge(pairs.positive[:, None], similarity, margin=margin)
        total = total + violation.masked_fill(is_positive, 0.0).sum()
    with torch.no_grad():
        hardest = online_triplet(pairs, margin=margin).total / (2 * len(pairs.positive))
    return LossValue(total, {"online": total.detach(), "hardest": hardest})


def online_triplet(pairs: Similarities, *, margin: float) -> LossValue:
    """The hardest negative of the batch in both directions, VSE++; AOQ eq. (2).

    L = sum over (i, t) of [m - S(i,t) + S(i,t_on)]_+ + [m - S(i,t) + S(i_on,t)]_+
    """
    total = pairs.matrix.new_zeros(())
    for similarity, is_positive in [(pairs.matrix, pairs.is_positive), (pairs.matrix.T, pairs.is_positive.T)]:
        online = hardest_negative(similarity, is_positive)
        total = total + hinge(pairs.positive, online, margin=margin).sum()
    return LossValue(total, {"online": total.detach()})
