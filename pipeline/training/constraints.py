"""CCR and CCS beside a round's own loss, on the attention of the anchors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from aoq.models.base import Code, MatchingModel
from aoq.pipeline.config.constraints import Constraints
from aoq.pipeline.losses.contrastive_content import content_resourcing, content_similarities, content_swapping
from aoq.pipeline.losses.similarities import LossValue
from aoq.pipeline.training.step import Objective

TERMS = {"ccr": content_resourcing, "ccs": content_swapping}


def constrained(objective: Objective, constraints: Constraints | None, rng: np.random.Generator) -> Objective:
    """The objective of one step, whose queries are drawn by the step's `rng`; itself without constraints."""
    if constraints is None:
        return objective
    return replace(objective, besides=partial(constrain, constraints=constraints, rng=rng))


def constrain(
    model: MatchingModel, images: Code, captions: Code, *, constraints: Constraints, rng: np.random.Generator
) -> LossValue:
    """The weighted sum of the terms over matched pairs and directions; the figures `ccr` and `ccs` are not weighted."""
    total = images.vectors.new_zeros(())
    figures = dict.fromkeys(constraints.names, total)
    for attention in model.fragment_attention(images, captions):
        uniform = torch.from_numpy(rng.random((2, len(images)))).to(total.device)
        similarities = content_similarities(attention, uniform)
        for name in constraints.names:
            term, numbers = TERMS[name], getattr(constraints, name)
            value = term(similarities, margin=numbers.margin)
            total = total + numbers.weight * value
            figures[name] = figures[name] + value.detach()
    return LossValue(total, figures)
