"""Losses on logits: InfoNCE with offline negatives as further columns and weights, and SigLIP's sigmoid loss.

In InfoNCE an anchor is compared with its positive p, its in-batch negatives and the drawn offline ones:

    L = sum over anchors of  -log( e^(p / tau) / (e^(p / tau) + sum over negatives j of w_j e^(s_j / tau)) )

Images are anchors, then captions: van den Oord et al. 2018, eq. (4), in the two directions of CLIP (Radford et al.
2021, figure 3). It is a sum like the other losses, where CLIP halves and averages. Positives off the diagonal are not
columns. A weight w_j is added to the logit as log w_j, so that 0 removes a column; weights have no gradient. Derived
pairs are not used, since they share no anchor with their pair; with companions as anchors all pairs of a triple are
anchors, each with its own offline negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from aoq.pipeline.losses.aoq import adaptive_weight
from aoq.pipeline.losses.hinge import NO_NEGATIVE, Number
from aoq.pipeline.losses.similarities import LossValue, Similarities, check_temperature, levelled, offline_figures

Columns = Float[Tensor, "batch columns"]
Weigh = Callable[[Columns, int], Columns]
"""Computes the addition to the log-weights of a direction's negatives from their similarities and `offline`."""


class Negatives(NamedTuple):
    """One direction's negatives, a row per anchor: those of the batch, then its offline ones if there is a table."""

    similarity: Columns
    log_weight: Columns
    """-inf for entries that are not negatives."""
    offline: int
    """Number of columns at the end drawn for the anchor itself."""


def info_nce(pairs: Similarities, *, temperature: Number = 0.07, hardness_weight: float = 0.0) -> LossValue:
    """Contrast each positive with in-batch and offline negatives; without a table, with in-batch ones.

    `hardness_weight` is LLaVE's alpha (Lan et al. 2025, hardness-weighted contrastive learning), which gives harder
    negatives more weight; the paper uses 9, and 0 gives equal weights:

        w_j = e^(alpha s_j)

    >>> matrix = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    >>> info_nce(Similarities(matrix, torch.eye(2).bool()), temperature=0.1).total  # 4 log 2
    tensor(2.7726)
    """
    return _contrast(pairs, temperature, lambda similarity, _: hardness_weight * similarity)


def adap_info_nce(
    pairs: Similarities, *, temperature: Number = 0.07, hardness_weight: float = 0.0, alpha: float, beta: float
) -> LossValue:
    """InfoNCE whose in-batch negatives have the adaptive weights of AOQ eq. (5), and offline negatives the weight 1.

        w_j = [beta - (s_offline - s_j) / alpha]_+        s_offline: of the hardest offline negative

    Unlike in eq. (6) the weights have no gradient: in a softmax a harder offline negative would lower the weights of
    the whole row, and be rewarded for it. Without an offline negative all weights are 1. LLaVE's multiply them.
    """
    if pairs.offline is None:
        return info_nce(pairs, temperature=temperature, hardness_weight=hardness_weight)
    adaptive = partial(adaptive_columns, alpha=alpha, beta=beta)
    value = _contrast(pairs, temperature, lambda own, offline: adaptive(own, offline).log() + hardness_weight * own)
    with torch.no_grad():  # of in-batch negatives; 0 if there are none
        directions = negatives_by_direction(pairs)
        weights = torch.stack([adaptive(one.similarity, one.offline)[:, : -one.offline] for one in directions])
        is_other = torch.stack([one.log_weight[:, : -one.offline] for one in directions]).isinf()
        count = (~is_other).sum().clamp(min=1)
        shown = {"weight_mean": weights, "weight_zero_share": (weights == 0).to(weights.dtype)}
        figures = {name: figure.masked_fill(is_other, 0).sum() / count for name, figure in shown.items()}
    return LossValue(value.total, value.figures | figures)


def adaptive_columns(similarity: Columns, offline: int, *, alpha: float, beta: float) -> Columns:
    """Weigh every in-batch negative; the last columns, the `offline` ones, have weight 1.

    >>> adaptive_columns(torch.tensor([[0.6, 0.3, -0.2, 0.6]]), 1, alpha=0.3, beta=1.5)
    tensor([[1.5000, 0.5000, 0.0000, 1.0000]])
    """
    online, drawn = similarity[:, :-offline], similarity[:, -offline:]
    hardest = drawn.amax(1, keepdim=True)
    flat = hardest.expand_as(online).flatten(), online.flatten()
    weights = adaptive_weight(*flat, alpha=alpha, beta=beta).clamp(min=0).view_as(online)
    weights = weights.masked_fill(hardest < NO_NEGATIVE / 2, 1.0)
    return torch.cat([weights, torch.ones_like(drawn)], dim=1)


def negatives_by_direction(pairs: Similarities) -> list[Negatives]:
    """Return the negatives of images, then those of captions.

    An offline negative that matches its anchor with probability p has weight 1 - p.
    """
    by_direction = []
    for side, (similarity, is_positive) in enumerate(pairs.directions):
        log_weight = torch.zeros_like(similarity).masked_fill(is_positive, -torch.inf)
        if pairs.offline is not None:
            drawn, probability = pairs.offline.all_drawn[side], pairs.offline.match_probability
            left = torch.ones_like(drawn) if probability is None else 1 - probability[side].to(drawn.dtype)[:, None]
            similarity = torch.cat([similarity, drawn], dim=1)
            log_weight = torch.cat([log_weight, left.log().masked_fill(drawn < NO_NEGATIVE / 2, -torch.inf)], dim=1)
        by_direction.append(Negatives(similarity, log_weight, 0 if pairs.offline is None else drawn.shape[1]))
    return by_direction


def _contrast(pairs: Similarities, temperature: Number, weigh: Weigh) -> LossValue:
    """Compute the loss of both directions.

    The figure `plateau` is the loss of a collapsed model on this batch, `offline_share` the offline negatives' fraction
    of the softmax over negatives.
    """
    check_temperature(temperature)
    total, shares = _add_up(pairs, temperature, weigh)
    with torch.no_grad():
        figures = {"plateau": _add_up(levelled(pairs), temperature, weigh)[0], **offline_figures(pairs)}
    if pairs.offline is not None:
        figures["offline_share"] = shares
    figures["temperature"] = torch.as_tensor(temperature).detach()
    return LossValue(total, figures)


def _add_up(pairs: Similarities, temperature: Number, weigh: Weigh) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the sum over anchors, and the offline columns' mean fraction of the negatives (0 in rows without any)."""
    total, shares = pairs.matrix.new_zeros(()), []
    own = (pairs.positive / temperature)[:, None]
    for similarity, log_weight, count in negatives_by_direction(pairs):
        weights = log_weight + weigh(similarity.detach(), count)
        # Divided by a temperature, float16's similarity of a missing negative is infinite, and has no gradient.
        logits = similarity.masked_fill(weights.isinf(), 0) / temperature + weights
        total = total + (torch.cat([own, logits], dim=1).logsumexp(dim=1) - own[:, 0]).sum()
        shares.append(logits.detach().softmax(dim=1)[:, logits.shape[1] - count :].sum(1).nan_to_num())
    return total, torch.stack(shares).mean()


def sigmoid_loss(pairs: Similarities, *, temperature: Number = 0.1, bias: Number = -10.0) -> LossValue:
    """Classify each pair as match or negative on its own, SigLIP (Zhai et al. 2023, section 3.2, algorithm 1).

        L = sum over pairs of log(1 + e^(-z (s / tau + b)))        z = 1 for a match, -1 for a negative

    Negatives are those of the batch, S(i, t_off) and S(i_off, t). An offline negative that matches with probability p
    has weight 1 - p. It is a sum like the other losses, where SigLIP divides by the batch size. Positives off the
    diagonal are left out.

    >>> matrix = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    >>> sigmoid_loss(Similarities(matrix, torch.eye(2).bool()), temperature=0.1, bias=-5.0).total
    tensor(1.3997)
    """
    check_temperature(temperature)
    total, offline = _cross_entropies(pairs, temperature, bias)
    figures = {"online": (total - offline).detach(), **offline_figures(pairs)}
    if pairs.offline is not None:
        figures["offline"] = offline.detach()
    with torch.no_grad():
        figures["plateau"], _ = _cross_entropies(levelled(pairs), temperature, bias)
    figures |= {"temperature": torch.as_tensor(temperature).detach(), "bias": torch.as_tensor(bias).detach()}
    return LossValue(total, figures)


def _cross_entropies(
    pairs: Similarities, temperature: Number, bias: Number
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the sum over all pairs, and over the offline ones among them."""

    def logits(similarity: Tensor) -> Tensor:
        return similarity / temperature + bias

    online = softplus(logits(pairs.matrix)).masked_fill(pairs.is_positive, 0.0).sum()
    total, offline = softplus(-logits(pairs.positive)).sum() + online, pairs.matrix.new_zeros(())
    if pairs.offline is not None:
        probability, others = pairs.offline.match_probability, pairs.offline.others or ()
        for side, drawn in enumerate((*pairs.offline.all_drawn, *others)):
            missing = drawn < NO_NEGATIVE / 2
            # Divided by a temperature, float16's similarity of a missing negative is infinite, and has no gradient.
            cost = softplus(logits(drawn.masked_fill(missing, 0.0))).masked_fill(missing, 0.0)
            offline = offline + (cost if probability is None else cost * (1 - probability[side])[:, None]).sum()
    return total + offline, offline


class LearntTemperature(nn.Module):
    """A temperature, and optionally a bias, learnt with the model; a call returns their values.

    The parameter is log(1 / temperature), the logarithm of the scale of the logits. CLIP (section 2.5) starts at a
    temperature of 0.07 and bounds the scale by 100, `max_scale`; SigLIP (section 3.2) starts at log 10 with a bias of
    -10 and has no such bound. Give the parameters to the model's optimiser, without weight decay.

    >>> {name: round(value.item(), 4) for name, value in LearntTemperature(temperature=0.1, bias=-10.0)().items()}
    {'temperature': 0.1, 'bias': -10.0}
    """

    def __init__(self, *, temperature: float = 0.07, bias: float | None = None, max_scale: float = math.inf) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.bias = None if bias is None else nn.Parameter(torch.tensor(bias))
        self.max_scale = max_scale

    def forward(self) -> dict[str, Tensor]:
        with torch.no_grad():  # CLIP clamps the parameter itself: clamping the value alone would stop its gradient
            self.log_scale.clamp_(max=math.log(self.max_scale))
        temperature = {"temperature": (-self.log_scale).exp()}
        return temperature if self.bias is None else temperature | {"bias": self.bias}

    def values(self) -> dict[str, float]:
        """Return the values as numbers.

        >>> LearntTemperature(temperature=1.0).values()
        {'temperature': 1.0}
        """
        return {name: value.item() for name, value in self().items()}
