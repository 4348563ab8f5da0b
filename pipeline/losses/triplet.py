"""Triplet losses on in-batch negatives: all of them, or the hardest."""

from __future__ import annotations

from aoq.pipeline.losses.hinge import hinge
from aoq.pipeline.losses.similarities import LossValue, Similarities


def sum_triplet(pairs: Similarities, *, margin: float) -> LossValue:
    """Sum over all in-batch negatives in both directions, AOQ eq. (1).

    L = sum over (i, t) of sum over t' [m - S(i,t) + S(i,t')]_+ + sum over i' [m - S(i,t) + S(i',t)]_+
    """
    total = pairs.matrix.new_zeros(())
    for similarity, is_positive in pairs.directions:
        violation = hinge(pairs.positive[:, None], similarity, margin=margin)
        total = total + violation.masked_fill(is_positive, 0.0).sum()
    return LossValue(total, {"online": total.detach()})


def online_triplet(pairs: Similarities, *, margin: float) -> LossValue:
    """Sum over the hardest in-batch negatives in both directions, VSE++; AOQ eq. (2).

    L = sum over (i, t) of [m - S(i,t) + S(i,t_on)]_+ + [m - S(i,t) + S(i_on,t)]_+

    With a lower `hardness` of the pairs, online negatives are means (`aoq.pipeline.losses.hinge.online_negative`).
    """
    total = pairs.matrix.new_zeros(())
    for online in pairs.online:
        total = total + hinge(pairs.positive, online, margin=margin).sum()
    return LossValue(total, {"online": total.detach()})
