"""One training step: what is drawn and encoded, which similarities it yields, their loss, and the descent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from aoq.models.base import Captions, Code, Images, MatchingModel
from aoq.pipeline.config.losses import Loss
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.losses import LossKind, loss_kind
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import LossValue, OfflineSimilarities, Similarities, positive_pairs
from aoq.pipeline.training.sampler import Drawn, Sampler, draw_groups


@dataclass(frozen=True)
class Objective:
    """A loss with its numbers, and whether other captions of an anchor's image count as positives."""

    kind: LossKind
    loss: Callable[[Similarities], LossValue]
    mask_positives: bool
    besides: Callable[[MatchingModel, Code, Code], LossValue] | None = None
    """A further loss on the codes of the anchors, already weighted."""
    observes: bool = True
    """Whether the model may learn from the batch how matched pairs are scored: not from pairs flagged as noisy."""


@dataclass(frozen=True)
class Batch:
    """Anchors first, then their companions group by group: as many blocks of B captions as the images have groups.

    One group: anchors alone. Two: the offline negatives. Three: the companions of these as well.
    """

    images: Images
    captions: Captions
    image_rows: Int[Tensor, " batch"]
    corresponding: Bool[Tensor, " batch"] | None = None
    """Where the pairs derived from the offline negatives are true pairs."""

    def to(self, device: torch.device) -> Batch:
        corresponding = None if self.corresponding is None else self.corresponding.to(device)
        return Batch(self.images.to(device), self.captions.to(device), self.image_rows.to(device), corresponding)


def make_objective(loss: Loss) -> Objective:
    kind = loss_kind(loss.name, "anchors" if loss.makes_triples else None)
    numbers = loss.model_dump(exclude={"name", "mask_positives", "companions"})
    return Objective(kind, partial(kind.function, **numbers), loss.mask_positives)


def draw_batch(
    pairs: PairData,
    sampler: Sampler | None,
    objective: Objective,
    captions: Int32[np.ndarray, " batch"],
    rng: np.random.Generator,
    epoch: int,
) -> Drawn:
    """What a step sees of the split and of the table; `epoch` counts from the first one that draws."""
    if sampler is None or objective.kind.offline == "none":
        return Drawn([(pairs.split.image_of[captions], captions)])
    return draw_groups(sampler, objective.kind.offline, captions, rng, epoch)


def read_batch(pairs: PairData, drawn: Drawn) -> Batch:
    images = pairs.images(np.concatenate([images for images, _ in drawn.groups]))
    return Batch(
        replace(images, groups=len(drawn.groups)),
        pairs.captions(np.concatenate([captions for _, captions in drawn.groups])),
        torch.from_numpy(drawn.groups[0][0].astype(np.int64)),
        None if drawn.corresponding is None else torch.from_numpy(drawn.corresponding),
    )


def forward(model: MatchingModel, batch: Batch, objective: Objective) -> tuple[LossValue, Float[Tensor, ""] | None]:
    """The loss on the batch's similarities, and what is added to it: the model's auxiliary loss on the anchors, and the
    objective's.

    The figure `positive_gap` is how far the positives lie above the batch's mean similarity: 0 for a
    collapsed model.
    """
    size = len(batch.image_rows)
    images = model.encode_images(batch.images)
    captions = model.encode_captions(batch.captions)
    matrix = model.similarity(images[:size], captions[:size])
    is_positive = positive_pairs(batch.image_rows, mask_positives=objective.mask_positives)
    offline = _offline_similarities(model, images, captions, batch) if batch.images.groups > 1 else None
    value = objective.loss(Similarities(matrix, is_positive, offline))
    gap = (matrix.diagonal().mean() - matrix.mean()).detach()
    value = LossValue(value.total, {**value.figures, "positive_gap": gap})
    auxiliary = model.auxiliary_loss(images[:size], batch.captions[:size])
    if objective.besides is not None:
        further = objective.besides(model, images[:size], captions[:size])
        value = LossValue(value.total, {**value.figures, **further.figures})
        auxiliary = further.total if auxiliary is None else auxiliary + further.total
    if objective.observes:
        model.observe(images[:size], captions[:size], matrix.detach())  # last: a step's scores are all of one model
    return value, auxiliary


def _offline_similarities(model: MatchingModel, images: Code, captions: Code, batch: Batch) -> OfflineSimilarities:
    """The aligned pair lists of AOQ eqs. (3) to (5), in one call; derived pairs that are true are no negatives."""
    size, groups = len(batch.image_rows), batch.images.groups
    images = replace(images, context=None, context_mask=None)  # the auxiliary loss's, and too large to be gathered here
    anchor, offline, companion = (torch.arange(size) + group * size for group in range(3))
    wanted = [(anchor, offline), (offline, anchor), (offline, offline), (companion, companion)]
    wanted = wanted[: 2 if groups == 2 else 4]
    image_rows = torch.cat([rows for rows, _ in wanted])
    caption_rows = torch.cat([rows for _, rows in wanted])
    similarities = model.pair_similarity(images[image_rows], captions[caption_rows]).split(size)
    anchored, derived = similarities[:2], similarities[2:]
    if batch.corresponding is not None:
        derived = [similarity.masked_fill(batch.corresponding, NO_NEGATIVE) for similarity in derived]
    return OfflineSimilarities(*anchored, *derived)


def take_step(
    model: MatchingModel,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[Tensor],
    batch: Batch,
    objective: Objective,
    gradient_clip: float,
) -> dict[str, float]:
    """Forward, backward, clip, step; the figures of the batch."""
    value, auxiliary = forward(model, batch, objective)
    total = value.total if auxiliary is None else value.total + auxiliary
    norm = descend(total, optimizer, parameters, gradient_clip)
    figures = {
        "loss": total.detach(),
        "retrieval_loss": value.total.detach(),
        **value.figures,
        "gradient_norm": norm,
    }
    if auxiliary is not None:
        figures["auxiliary_loss"] = auxiliary.detach()
    return {name: float(figure) for name, figure in figures.items()}


def descend(
    total: Tensor, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor], gradient_clip: float
) -> Float[Tensor, ""]:
    """Backward, clip, step; the gradient's norm before it was clipped."""
    optimizer.zero_grad(set_to_none=True)
    total.backward()
    norm = torch.nn.utils.clip_grad_norm_(parameters, gradient_clip)
    optimizer.step()
    return norm
