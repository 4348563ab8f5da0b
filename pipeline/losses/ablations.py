"""The variants that AOQ is compared with: its section 4.4, and section 3.3 for the squared hinges."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from aoq.pipeline.losses.aoq import (
    adaptive_weight,
    add_up,
    derived_pairs,
    equal_weights,
    offline_of,
    online_by_direction,
)
from aoq.pipeline.losses.hinge import NO_NEGATIVE, squared_hinge
from aoq.pipeline.losses.similarities import LossValue, Similarities


def only_offline(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """OffQuin without its online terms, "OnlyOffline": the four hinges with m2 of AOQ eq. (4).

    Online negatives weigh nothing; their margin is that of the warm-up and the control.
    """
    offline = offline_of(pairs)
    nothing = [weight * 0 for weight in equal_weights(pairs)]
    return add_up(pairs, offline, nothing, margin_online, margin_offline, derived_pairs(offline))


def online_quin(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """OffTri and two pairs derived from the online negatives, "OnlineQuin".

    Adds [m2 - S(i,t) + S(i_on,t_on)]_+ + [m2 - S(i,t) + S(i_own,t_own)]_+ with the image i_own of t_on and the
    caption t_own of i_on that stand in the batch. Where i_on and t_on correspond, both are true pairs and add nothing.
    """
    derived = _derived_online(pairs)
    return add_up(pairs, offline_of(pairs), equal_weights(pairs), margin_online, margin_offline, derived)


def adap_pos_quin(
    pairs: Similarities, *, margin_online: float, margin_offline: float, alpha: float, beta: float
) -> LossValue:
    """AdapOffQuin whose weights compare online negatives with the positive, "w/o OfflineAdap".

        w = beta - (S(i,t) - s_online) / alpha

    The paper tuned alpha and beta anew for it, and does not say to what.
    """
    offline = offline_of(pairs)
    weights = [adaptive_weight(pairs.positive, online, alpha=alpha, beta=beta) for online in online_by_direction(pairs)]
    return add_up(pairs, offline, weights, margin_online, margin_offline, derived_pairs(offline))


def squared_off_quin(pairs: Similarities, *, margin_online: float, margin_offline: float) -> LossValue:
    """OffQuin with every hinge squared, AOQ section 3.3: adaptive, but without a hierarchy."""
    offline = offline_of(pairs)
    derived = derived_pairs(offline)
    return add_up(pairs, offline, equal_weights(pairs), margin_online, margin_offline, derived, squared_hinge)


def _derived_online(pairs: Similarities) -> list[Float[Tensor, " batch"]]:
    """S(i_on, t_on) and S(i_own, t_own) of each pair, or no negative where i_on and t_on correspond."""
    candidates = pairs.matrix.masked_fill(pairs.is_positive, NO_NEGATIVE)
    captions, images = candidates.argmax(dim=1), candidates.argmax(dim=0)
    correspond = pairs.is_positive[images, captions]
    both = pairs.matrix[images, captions], pairs.matrix[captions, images]
    return [similarity.masked_fill(correspond, NO_NEGATIVE) for similarity in both]
