"""One training step: draw, encode, compute similarities and their loss, and descend."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64
from torch import Tensor, nn

from aoq.models.base import Captions, Code, Images, MatchingModel
from aoq.models.packing import sent
from aoq.pipeline.config.losses import Loss
from aoq.pipeline.config.training import Constraints
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.losses import loss_kind
from aoq.pipeline.losses.companions import with_companions
from aoq.pipeline.losses.contrastive_content import content_resourcing, content_similarities, content_swapping
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.pace import Pace
from aoq.pipeline.losses.similarities import LossValue, OfflineSimilarities, Similarities, positive_pairs
from aoq.pipeline.losses.triplet import online_triplet
from aoq.pipeline.training.parts import WHOLE, Cut
from aoq.pipeline.training.sampler import Draw, Group, Offline, Sampler
from aoq.pipeline.training.scoring import Aligned, Scores

TERMS = {"ccr": content_resourcing, "ccs": content_swapping}


@dataclass(frozen=True)
class Objective:
    """A loss with its numbers, and whether other captions of an anchor's image count as positives."""

    loss: Callable[[Similarities], LossValue]
    mask_positives: bool
    offline: Literal["none"] | Offline = "none"
    besides: Aligned | None = None
    """A further loss on the codes of the anchors, already weighted."""
    pace: Callable[[Similarities], Similarities] | None = None
    """Adapts the hardness of online negatives to the model."""
    guided: Bool[Tensor, "batch batch"] | None = None
    """Pairs of this batch that a guide does not accept as negatives."""
    is_sparse: Callable[[], bool] = lambda: False
    """Whether few entries of the matrix will have a gradient in this step."""


@dataclass(frozen=True)
class Batch:
    """Anchors first, then their companions group by group: as many blocks of B captions as the images have groups.

    One group: anchors alone. Two: the offline negatives. Three: the companions of these as well.
    """

    images: Images
    captions: Captions
    image_rows: Int[Tensor, " batch"]
    corresponding: Bool[Tensor, " batch"] | None = None
    """True where the pairs derived from the offline negatives are true pairs."""
    match_probability: Float[Tensor, "2 batch"] | None = None
    """Probability that the offline negatives match their anchors, for soft margins."""

    def to(self, device: torch.device) -> Batch:
        moved = self._each(lambda part: sent(part, device))
        return replace(self, images=self.images.to(device), captions=self.captions.to(device), **moved)

    def pin_memory(self) -> Batch:
        pinned = self._each(Tensor.pin_memory)
        return replace(self, images=self.images.pin_memory(), captions=self.captions.pin_memory(), **pinned)

    def _each(self, function: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        return {name: function(part) for name, part in vars(self).items() if isinstance(part, Tensor)}


def make_objective(
    loss: Loss, pace: Pace | None = None, learnt: Callable[[], Mapping[str, Tensor]] | None = None
) -> Objective:
    """Make the loss with its numbers, `learnt` ones with their current values; `pace` is given the loss of the online
    negatives alone."""
    kind = loss_kind(loss.name, "anchors" if loss.makes_triples else None)

    def with_numbers(pairs: Similarities) -> LossValue:
        return kind.function(pairs, **{**loss.numbers, **({} if learnt is None else learnt())})

    objective = Objective(with_numbers, loss.mask_positives, kind.offline, is_sparse=lambda: kind.is_sparse)
    if pace is None:
        return objective
    online = with_companions(online_triplet) if loss.makes_triples else online_triplet
    follow = partial(pace.follow, loss=partial(online, margin=loss.online_margin))
    return replace(objective, pace=follow, is_sparse=lambda: kind.is_sparse and pace.is_at_hardest)


def draw_batch(
    pairs: PairData,
    sampler: Sampler | None,
    objective: Objective,
    captions: Int32[np.ndarray, " batch"],
    rng: np.random.Generator,
    epoch: int,
) -> Draw:
    """Draw a step's rows of the split and the table; `epoch` counts from the first one that draws."""
    if sampler is None or objective.offline == "none":
        return Draw([Group(pairs.split.image_of[captions], captions)])
    return sampler.draw_for(objective.offline, captions, rng, epoch)


def read_batch(pairs: PairData, draw: Draw, part: slice = slice(None)) -> Batch:
    """Read images and captions of this part of the anchors and their companions; the other fields cover all anchors."""
    images, captions = (np.concatenate([rows[part] for rows in side]) for side in zip(*draw.groups, strict=True))
    return Batch(
        replace(pairs.images(images), groups=len(draw.groups)),
        pairs.captions(captions),
        torch.from_numpy(_photographs(pairs, draw.groups[0].images)),
        *(None if part is None else torch.from_numpy(part) for part in (draw.corresponding, draw.match_probability)),
    )


def _photographs(pairs: PairData, images: Int32[np.ndarray, " batch"]) -> Int64[np.ndarray, " batch"]:
    """Return a number per image, equal for copies of one photograph, to tell which pairs are no negatives."""
    identity = pairs.split.identity
    return (images if identity is None else identity[images]).astype(np.int64)


def forward(
    model: MatchingModel, batch: Batch, objective: Objective, cut: Cut = WHOLE
) -> tuple[LossValue, Float[Tensor, ""] | None, Callable[[], None]]:
    """Compute the batch's loss and what is added to it: the model's auxiliary loss on the anchors, and the
    objective's. The function returned besides shows the model the batch; a backward pass that computes again what the
    forward pass did must come before.

    The figure `positive_gap` is the positives' mean distance above the batch's mean similarity: 0 for a
    collapsed model.
    """
    scores = cut.scores(model, batch.images, batch.captions, len(batch.image_rows))
    matrix = scores.matrix(objective.is_sparse)
    is_positive = positive_pairs(batch.image_rows, mask_positives=objective.mask_positives)
    if objective.guided is not None:
        is_positive = is_positive | objective.guided
    offline = _offline_similarities(scores, batch) if batch.images.groups > 1 else None
    pairs = Similarities(matrix, is_positive, offline)
    value = objective.loss(pairs if objective.pace is None else objective.pace(pairs))
    figures = {**value.figures, "positive_gap": (matrix.diagonal().mean() - matrix.mean()).detach()}
    auxiliary = scores.auxiliary()
    if objective.besides is not None:
        further = scores.besides(objective.besides)
        figures |= further.figures
        auxiliary = further.total if auxiliary is None else auxiliary + further.total
    return LossValue(value.total, figures), auxiliary, partial(scores.observe, matrix.detach())


class PairDraws:
    """Two uniform numbers per pair of the batch, for each direction of attention: the same for every part."""

    def __init__(self, rng: np.random.Generator, batch: int) -> None:
        self._rng, self._batch = rng, batch
        self._drawn: list[Float64[np.ndarray, "2 batch"]] = []

    def __getitem__(self, direction: int) -> Float64[np.ndarray, "2 batch"]:
        while len(self._drawn) <= direction:
            self._drawn.append(self._rng.random((2, self._batch)))
        return self._drawn[direction]


def constrain(
    model: MatchingModel, images: Code, captions: Code, rows: slice, *, constraints: Constraints, draws: PairDraws
) -> LossValue:
    """Sum the weighted terms over matched pairs and directions; the figures `ccr` and `ccs` are not weighted."""
    total = images.vectors.new_zeros(())
    figures = dict.fromkeys(constraints.names, total)
    for direction, attention in enumerate(model.fragment_attention(images, captions)):
        uniform = sent(torch.from_numpy(draws[direction][:, rows]), total.device)
        similarities = content_similarities(attention, uniform)
        for name in constraints.names:
            term, numbers = TERMS[name], getattr(constraints, name)
            value = term(similarities, margin=numbers.margin)
            total = total + numbers.weight * value
            figures[name] = figures[name] + value.detach()
    return LossValue(total, figures)


def _offline_similarities(scores: Scores, batch: Batch) -> OfflineSimilarities:
    """Score the aligned pair lists of AOQ eqs. (3) to (5); derived pairs that are true are no negatives."""
    anchor, offline, companion = range(3)
    wanted = [(anchor, offline), (offline, anchor), (offline, offline), (companion, companion)]
    similarities = scores.pair_lists(wanted[: 2 if batch.images.groups == 2 else 4])
    anchored, derived = similarities[:2], similarities[2:]
    if batch.corresponding is not None:
        derived = [similarity.masked_fill(batch.corresponding, NO_NEGATIVE) for similarity in derived]
    return replace(OfflineSimilarities(*anchored, *derived), match_probability=batch.match_probability)


def take_step(
    model: MatchingModel,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    objective: Objective,
    gradient_clip: float,
    cut: Cut = WHOLE,
) -> dict[str, Tensor]:
    """Take a step: forward, backward, clip, update; return the batch's figures without waiting for the device."""
    model.train()
    of_batch = cut.for_batch(len(batch.image_rows))
    value, auxiliary, observe = forward(model, batch, objective, of_batch)
    total = value.total if auxiliary is None else value.total + auxiliary
    norm = descend(total, optimizer, gradient_clip, cut.gather(of_batch))
    observe()
    figures = {"loss": total, "retrieval_loss": value.total, **value.figures, "gradient_norm": norm}
    if auxiliary is not None:
        figures["auxiliary_loss"] = auxiliary
    return {name: figure.detach() for name, figure in figures.items()}


def descend(
    total: Tensor,
    optimizer: torch.optim.Optimizer,
    gradient_clip: float,
    gather: Callable[[list[nn.Parameter]], None] = lambda parameters: None,
) -> Float[Tensor, ""]:
    """Backward, `gather` the gradients of all processes, clip, update; return the gradient's norm before clipping."""
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    gather(parameters)
    norm = torch.nn.utils.clip_grad_norm_(parameters, gradient_clip)
    optimizer.step()
    return norm
