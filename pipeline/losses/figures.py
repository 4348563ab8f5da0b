"""What a collapsed model would make of a batch, and how hard its offline negatives are: figures for the log."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities


def levelled(pairs: Similarities) -> Similarities:
    """The batch with its mean similarity everywhere: to a collapsed model all pairs are equally similar.

    What is no negative stays none. Derived pairs are left out.
    """
    mean = pairs.matrix.detach().mean()
    offline = pairs.offline
    if offline is not None:
        drawn = (offline.image_to_caption, offline.caption_to_image)
        to_caption, to_image = (torch.where(similarity < NO_NEGATIVE / 2, NO_NEGATIVE, mean) for similarity in drawn)
        offline = OfflineSimilarities(to_caption, to_image, match_probability=offline.match_probability)
    return replace(pairs, matrix=mean.expand_as(pairs.matrix), offline=offline)


def offline_figures(pairs: Similarities) -> dict[str, Tensor]:
    """How many offline negatives are harder than the hardest of the batch, and than the positive; empty without any."""
    if pairs.offline is None:
        return {}
    offline = torch.stack([pairs.offline.image_to_caption, pairs.offline.caption_to_image]).detach()
    hardest, probability = torch.stack(replace(pairs, hardness=math.inf).online), pairs.offline.match_probability
    soft = {} if probability is None else {"offline_match_probability": probability.mean()}
    return soft | {
        "offline_above_positive_share": (offline > pairs.positive).float().mean(),
        "offline_harder_share": (offline > hardest).float().mean(),
    }
