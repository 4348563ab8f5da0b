"""The teacher as a guide: it excludes pairs of a batch as negatives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.losses.guide import guided_matches
from aoq.pipeline.training.sampler import Group


@dataclass(frozen=True)
class Guide:
    """Teacher's vectors of the training split, and the margin of `guided_matches`."""

    vectors: EmbeddingStore
    margin: float

    def matches(self, group: Group) -> Bool[Tensor, "batch batch"]:
        scores = self.vectors.images[group.images] @ self.vectors.captions[group.captions].T
        return guided_matches(torch.from_numpy(scores), margin=self.margin)
