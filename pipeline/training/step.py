"""One training step: what is encoded, which similarities it yields, and their loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.base import Captions, Code, Images, MatchingModel
from pipeline.data.batches import PairData
from pipeline.losses import LossKind
from pipeline.losses.similarities import LossValue, OfflineSimilarities, Similarities, positive_pairs
from pipeline.mining.sampler import Group


@dataclass(frozen=True)
class Objective:
    """A loss with its numbers, and whether other captions of an anchor's image count as positives."""

    kind: LossKind
    loss: Callable[[Similarities], LossValue]
    mask_positives: bool
    besides: Callable[[MatchingModel, Code, Code], LossValue] | None = None
    """A further loss on the codes of the anchors, already weighted."""


@dataclass(frozen=True)
class Batch:
    """Anchors first, then their companions group by group: as many blocks of B captions as the images have groups.

    One group: anchors alone. Two: the offline negatives. Three: the companions of these as well.
    """

    images: Images
    captions: Captions
    image_rows: Int[Tensor, " batch"]

    def to(self, device: torch.device) -> Batch:
        return Batch(self.images.to(device), self.captions.to(device), self.image_rows.to(device))


GROUPS = {"none": 1, "anchors": 2, "quintuplet": 3}


def read_batch(pairs: PairData, groups: Sequence[Group]) -> Batch:
    """The tensors of the anchors and as many groups of companions as the loss needs."""
    images = pairs.images(np.concatenate([images for images, _ in groups]))
    return Batch(
        replace(images, groups=len(groups)),
        pairs.captions(np.concatenate([captions for _, captions in groups])),
        torch.from_numpy(groups[0][0].astype(np.int64)),
    )


def forward(model: MatchingModel, batch: Batch, objective: Objective) -> tuple[LossValue, Float[Tensor, ""] | None]:
    """The loss on the batch's similarities, and what is added to it: the model's auxiliary loss on the anchors, and the
    objective's.

    The figure `positive_gap` is how far the positives lie above the batch's mean similarity: 0 for a model that finds
    all pairs equally similar.
    """
    size = len(batch.image_rows)
    images = model.encode_images(batch.images)
    captions = model.encode_captions(batch.captions)
    matrix = model.similarity(images[:size], captions[:size])
    is_positive = positive_pairs(batch.image_rows, mask_positives=objective.mask_positives)
    groups = batch.images.groups
    offline = _offline_similarities(model, images, captions, size, groups) if groups > 1 else None
    value = objective.loss(Similarities(matrix, is_positive, offline))
    model.observe(images[:size], captions[:size], matrix.detach())  # last: a step's scores are all of one model
    gap = (matrix.diagonal().mean() - matrix.mean()).detach()
    value = LossValue(value.total, {**value.figures, "positive_gap": gap})
    auxiliary = model.auxiliary_loss(images[:size], batch.captions[:size])
    if objective.besides is None:
        return value, auxiliary
    further = objective.besides(model, images[:size], captions[:size])
    value = LossValue(value.total, {**value.figures, **further.figures})
    return value, further.total if auxiliary is None else auxiliary + further.total


def _offline_similarities(
    model: MatchingModel, images: Code, captions: Code, size: int, groups: int
) -> OfflineSimilarities:
    """The aligned pair lists of AOQ eqs. (3) to (5), in one call."""
    anchor, offline, companion = (torch.arange(size) + group * size for group in range(3))
    wanted = [(anchor, offline), (offline, anchor), (offline, offline), (companion, companion)]
    wanted = wanted[: 2 if groups == 2 else 4]
    image_rows = torch.cat([rows for rows, _ in wanted])
    caption_rows = torch.cat([rows for _, rows in wanted])
    return OfflineSimilarities(*model.pair_similarity(images[image_rows], captions[caption_rows]).split(size))
