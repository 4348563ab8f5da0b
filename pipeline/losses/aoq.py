"""Losses on offline hard negatives: OffTri, OffQuin and AdapOffQuin, AOQ eqs. (3) to (5)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.pipeline.losses.hinge import NO_NEGATIVE, hardest_negative, hinge
from aoq.pipeline.losses.similarities import LossValue, OfflineSimilarities, Similarities


def adaptive_weight(
    offline: Float[Tensor, " batch"], online: Float[Tensor, " batch"], *, alpha: float, beta: float
) -> Float[Tensor, " batch"]:
    """How hard to punish each online negative, AOQ eq. (5).

        w = beta - (s_offline - s_online) / alpha

    An online negative as close to the anchor as the offline one weighs `beta`; an easier one weighs less, and
    less than nothing once it is further than alpha * beta below. Eq. (6) differentiates through the weight. Where
    there is no negative of one kind there is nothing to compare, and the weight is `beta`.

    >>> adaptive_weight(torch.tensor([0.6, 0.6]), torch.tensor([0.6, 0.3]), alpha=0.3, beta=1.5)
    tensor([1.5000, 0.5000])
    """
    missing = (offline < NO_NEGATIVE / 2) | (online < NO_NEGATIVE / 2)  # halved: bfloat16 rounds it
    return (beta - (offline - online) / alpha).masked_fill(missing, beta)


def off_tri(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """The online triplet and an offline one in each direction, AOQ eq. (3).

    L = sum of [m1 - S(i,t) + S(i,t_on)]_+ + [m2 - S(i,t) + S(i,t_off)]_+  and the same with image and caption
    exchanged.
    """
    offline = offline_of(pairs)
    return add_up(pairs, offline, equal_weights(pairs), margin_online, margin_offline, derived=[])


def off_quin(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """OffTri and the two pairs derived from the offline negatives, AOQ eq. (4).

    Adds [m2 - S(i,t) + S(i_off,t_off)]_+ + [m2 - S(i,t) + S(i_own,t_own)]_+.
    """
    offline = offline_of(pairs)
    return add_up(pairs, offline, equal_weights(pairs), margin_online, margin_offline, derived=derived_pairs(offline))


def adap_off_quin(
    pairs: Similarities, *, margin_online: float, margin_offline: float, alpha: float, beta: float
) -> LossValue:
    """OffQuin with each online term weighed by its adaptive weight, AOQ eq. (5)."""
    offline = offline_of(pairs)
    weights = [
        adaptive_weight(of_offline, of_online, alpha=alpha, beta=beta)
        for of_offline, of_online in zip(offline_by_direction(offline), online_by_direction(pairs), strict=True)
    ]
    return add_up(pairs, offline, weights, margin_online, margin_offline, derived=derived_pairs(offline))


def add_up(
    pairs: Similarities,
    offline: OfflineSimilarities,
    weights: list[Float[Tensor, " batch"]],
    margin_online: float,
    margin_offline: float,
    derived: list[Float[Tensor, " batch"]],
    penalty: Callable[..., Float[Tensor, " batch"]] = hinge,
) -> LossValue:
    """The weighted online terms of both directions, the offline terms and those of the derived pairs."""
    positive = pairs.positive
    online_term = offline_term = derived_term = positive.new_zeros(())
    for weight, online in zip(weights, online_by_direction(pairs), strict=True):
        online_term = online_term + (weight * penalty(positive, online, margin=margin_online)).sum()
    for negative in offline_by_direction(offline):
        offline_term = offline_term + penalty(positive, negative, margin=margin_offline).sum()
    for negative in derived:
        derived_term = derived_term + penalty(positive, negative, margin=margin_offline).sum()
    both = torch.stack(weights).detach()
    figures = {
        "online": online_term.detach(),
        "offline": offline_term.detach(),
        "derived": derived_term.detach(),
        "weight_mean": both.mean(),
        "weight_negative_share": (both < 0).float().mean(),
        "offline_above_positive_share": (torch.stack(offline_by_direction(offline)) > positive).float().mean(),
    }
    return LossValue(online_term + offline_term + derived_term, figures)


def online_by_direction(pairs: Similarities) -> list[Float[Tensor, " batch"]]:
    """S(i, t_on) and S(i_on, t)."""
    return [
        hardest_negative(pairs.matrix, pairs.is_positive),
        hardest_negative(pairs.matrix.T, pairs.is_positive.T),
    ]


def offline_by_direction(offline: OfflineSimilarities) -> list[Float[Tensor, " batch"]]:
    return [offline.image_to_caption, offline.caption_to_image]


def derived_pairs(offline: OfflineSimilarities) -> list[Float[Tensor, " batch"]]:
    if offline.offline_pair is None or offline.companion_pair is None:
        raise ValueError("a quintuplet loss needs the similarities of the offline pair and of its companions")
    return [offline.offline_pair, offline.companion_pair]


def offline_of(pairs: Similarities) -> OfflineSimilarities:
    if pairs.offline is None:
        raise ValueError("this loss needs offline negatives, but the batch was drawn without a negative table")
    return pairs.offline


def equal_weights(pairs: Similarities) -> list[Float[Tensor, " batch"]]:
    return [torch.ones_like(pairs.positive)] * 2
