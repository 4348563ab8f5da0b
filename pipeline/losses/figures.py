"""Log figures: the loss of a collapsed model on a batch, and the hardness of its offline negatives."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities

SAME = 1e-5
"""Similarities this close count as equal: a drawn pair that is also in the batch is rounded differently there."""


def levelled(pairs: Similarities) -> Similarities:
    """Set all similarities of the batch to their mean, as in a collapsed model; derived pairs are left out."""
    mean = pairs.matrix.detach().mean()
    offline = pairs.offline
    if offline is not None:
        to_caption, to_image = (torch.where(one < NO_NEGATIVE / 2, NO_NEGATIVE, mean) for one in offline.drawn)
        offline = OfflineSimilarities(to_caption, to_image, match_probability=offline.match_probability)
    return replace(pairs, matrix=mean.expand_as(pairs.matrix), offline=offline)


def offline_figures(pairs: Similarities) -> dict[str, Tensor]:
    """Return the fractions of offline negatives harder than the hardest in-batch one, and than the positive, if any."""
    if pairs.offline is None:
        return {}
    offline = torch.stack(pairs.offline.drawn).detach()
    hardest, probability = torch.stack(replace(pairs, hardness=math.inf).online), pairs.offline.match_probability
    soft = {} if probability is None else {"offline_match_probability": probability.mean()}
    return soft | {
        "offline_above_positive_share": (offline > pairs.positive + SAME).double().mean(),
        "offline_harder_share": (offline > hardest + SAME).double().mean(),
    }
