"""AOQ's losses: on in-batch negatives, eqs. (1), (2), on offline ones, (3) to (5), and variants (sections 3.3, 4.4)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.pipeline.losses.hinge import NO_NEGATIVE, Number, hinge, squared_hinge
from aoq.pipeline.losses.similarities import LossValue, OfflineSimilarities, Similarities, offline_figures
from aoq.pipeline.losses.soft_margin import soft_margins


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


def adaptive_weight(
    offline: Float[Tensor, " batch"], online: Float[Tensor, " batch"], *, alpha: float, beta: float
) -> Float[Tensor, " batch"]:
    """Weigh each online negative, AOQ eq. (5).

        w = beta - (s_offline - s_online) / alpha

    An online negative as close to the anchor as the offline one has weight `beta`; an easier one has less, and a
    negative weight if it is more than alpha * beta below. Eq. (6) differentiates through the weight. If either negative
    is missing, the weight is `beta`.

    >>> adaptive_weight(torch.tensor([0.6, 0.6]), torch.tensor([0.6, 0.3]), alpha=0.3, beta=1.5)
    tensor([1.5000, 0.5000])
    """
    missing = (offline < NO_NEGATIVE / 2) | (online < NO_NEGATIVE / 2)  # halved: bfloat16 rounds it
    return (beta - (offline - online) / alpha).masked_fill(missing, beta)


def off_tri(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """Sum the online triplet and an offline one in each direction, AOQ eq. (3).

    L = sum of [m1 - S(i,t) + S(i,t_on)]_+ + [m2 - S(i,t) + S(i,t_off)]_+  and the same for captions as anchors.
    """
    return add_up(pairs, equal_weights(pairs), [], margin_online, margin_offline)


def off_quin(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """Add to OffTri the two pairs derived from the offline negatives, AOQ eq. (4).

    Adds [m2 - S(i,t) + S(i_off,t_off)]_+ + [m2 - S(i,t) + S(i_own,t_own)]_+.
    """
    return add_up(pairs, equal_weights(pairs), derived_pairs(pairs), margin_online, margin_offline)


def adap_off_tri(
    pairs: Similarities, *, margin_online: float, margin_offline: float, alpha: float, beta: float
) -> LossValue:
    """Weigh each online term of OffTri by its adaptive weight: AOQ eq. (5) without derived pairs."""
    return add_up(pairs, adaptive_weights(pairs, alpha=alpha, beta=beta), [], margin_online, margin_offline)


def adap_off_quin(
    pairs: Similarities, *, margin_online: float, margin_offline: float, alpha: float, beta: float
) -> LossValue:
    """Weigh each online term of OffQuin by its adaptive weight, AOQ eq. (5)."""
    weights = adaptive_weights(pairs, alpha=alpha, beta=beta)
    return add_up(pairs, weights, derived_pairs(pairs), margin_online, margin_offline)


def only_offline(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """OffQuin without its online terms, "OnlyOffline": the four hinges with m2 of AOQ eq. (4).

    Online negatives have weight 0; `margin_online` is for the warm-up and the control.
    """
    nothing = [weight * 0 for weight in equal_weights(pairs)]
    return add_up(pairs, nothing, derived_pairs(pairs), margin_online, margin_offline)


def online_quin(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """OffTri and two pairs derived from the online negatives, "OnlineQuin".

    Adds [m2 - S(i,t) + S(i_on,t_on)]_+ + [m2 - S(i,t) + S(i_own,t_own)]_+ with the image i_own of t_on and the
    caption t_own of i_on in the batch. Derived pairs that are not negatives, such as both if i_on and t_on correspond,
    add nothing. These online negatives are always the hardest, whatever the pace.
    """
    candidates = pairs.matrix.masked_fill(pairs.is_positive, NO_NEGATIVE)
    captions, images = candidates.argmax(dim=1), candidates.argmax(dim=0)
    derived = [candidates[images, captions], candidates[captions, images]]
    return add_up(pairs, equal_weights(pairs), derived, margin_online, margin_offline)


def adap_pos_quin(
    pairs: Similarities, *, margin_online: float, margin_offline: float, alpha: float, beta: float
) -> LossValue:
    """AdapOffQuin whose weights compare online negatives with the positive, "w/o OfflineAdap".

        w = beta - (S(i,t) - s_online) / alpha

    The paper tuned alpha and beta anew for it, without giving the values.
    """
    weights = [adaptive_weight(pairs.positive, online, alpha=alpha, beta=beta) for online in pairs.online]
    return add_up(pairs, weights, derived_pairs(pairs), margin_online, margin_offline)


def squared_off_quin(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """OffQuin with every hinge squared, AOQ section 3.3: adaptive, but without a hierarchy."""
    return add_up(pairs, equal_weights(pairs), derived_pairs(pairs), margin_online, margin_offline, squared_hinge)


def add_up(
    pairs: Similarities,
    weights: list[Float[Tensor, " batch"]],
    derived: list[Float[Tensor, " batch"]],
    margin_online: float,
    margin_offline: float,
    penalty: Callable[..., Float[Tensor, " batch"]] = hinge,
) -> LossValue:
    """Sum the weighted online terms of both directions, the offline terms and those of the derived pairs."""
    positive, offline = pairs.positive, _offline(pairs).drawn
    online_term = offline_term = derived_term = positive.new_zeros(())
    for weight, online in zip(weights, pairs.online, strict=True):
        online_term = online_term + (weight * penalty(positive, online, margin=margin_online)).sum()
    for negative, margin in zip(offline, offline_margins(pairs, margin_offline), strict=True):
        offline_term = offline_term + penalty(positive, negative, margin=margin).sum()
    for negative in derived:
        derived_term = derived_term + penalty(positive, negative, margin=margin_offline).sum()
    both = torch.stack(weights).detach()
    figures = {
        "online": online_term.detach(),
        "offline": offline_term.detach(),
        "derived": derived_term.detach(),
        "weight_mean": both.mean(),
        "weight_negative_share": (both < 0).float().mean(),
        **offline_figures(pairs),
    }
    return LossValue(online_term + offline_term + derived_term, figures)


def offline_margins(pairs: Similarities, margin: float) -> list[Number]:
    """Return the margins of S(i, t_off) and S(i_off, t): m2 (1 - p) if they match with probability p.

    This is NCR's linear soft margin for the label 1 - p. Derived pairs were not judged and keep the margin m2.

    >>> offline = OfflineSimilarities(*torch.zeros(4, 1), match_probability=torch.tensor([[0.25], [1.0]]))
    >>> offline_margins(Similarities(torch.eye(1), torch.eye(1).bool(), offline), margin=0.2)
    [tensor([0.1500]), tensor([0.])]
    """
    probability = _offline(pairs).match_probability
    return [margin] * 2 if probability is None else list(soft_margins(1 - probability, margin=margin, kind="linear"))


def derived_pairs(pairs: Similarities) -> list[Float[Tensor, " batch"]]:
    """Return S(i_off, t_off) and S(i_own, t_own)."""
    offline = _offline(pairs)
    if offline.offline_pair is None or offline.companion_pair is None:
        raise ValueError("a quintuplet loss needs the similarities of the offline pair and of its companions")
    return [offline.offline_pair, offline.companion_pair]


def _offline(pairs: Similarities) -> OfflineSimilarities:
    if pairs.offline is None:
        raise ValueError("this loss needs offline negatives, but the batch was drawn without a negative table")
    return pairs.offline


def adaptive_weights(pairs: Similarities, *, alpha: float, beta: float) -> list[Float[Tensor, " batch"]]:
    directions = zip(_offline(pairs).drawn, pairs.online, strict=True)
    return [adaptive_weight(offline, online, alpha=alpha, beta=beta) for offline, online in directions]


def equal_weights(pairs: Similarities) -> list[Float[Tensor, " batch"]]:
    return [torch.ones_like(pairs.positive)] * 2
