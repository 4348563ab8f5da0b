"""Input of the losses: similarities of a batch of B matched pairs, never an embedding."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from aoq.pipeline.losses.hinge import Hardness, online_negative


@dataclass(frozen=True)
class OfflineSimilarities:
    """Similarities with the negatives drawn from the table, AOQ eqs. (3) to (5).

    For pair (i, t): `t_off` is an offline negative caption of i, `i_off` an offline negative image of t, and
    (`i_own`, `t_own`) are the companions: the image of `t_off` and a caption of `i_off`.
    """

    image_to_caption: Float[Tensor, " batch"]
    """S(i, t_off)"""
    caption_to_image: Float[Tensor, " batch"]
    """S(i_off, t)"""
    offline_pair: Float[Tensor, " batch"] | None = None
    """S(i_off, t_off), for the quintuplet losses"""
    companion_pair: Float[Tensor, " batch"] | None = None
    """S(i_own, t_own), for the quintuplet losses"""
    match_probability: Float[Tensor, "2 batch"] | None = None
    """Probability, for soft margins or weights, that i and t_off match (row 0), and that i_off and t do (row 1)"""

    @property
    def drawn(self) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """S(i, t_off) and S(i_off, t)."""
        return self.image_to_caption, self.caption_to_image


@dataclass(frozen=True)
class Similarities:
    """The online matrix (image rows, caption columns, matched pairs on the diagonal) and the offline pairs."""

    matrix: Float[Tensor, "batch batch"]
    is_positive: Bool[Tensor, "batch batch"]
    offline: OfflineSimilarities | None = None
    hardness: Hardness = math.inf
    """Concentration of the weights on the most similar in-batch negatives; infinity is the hardest one alone."""

    @property
    def positive(self) -> Float[Tensor, " batch"]:
        return self.matrix.diagonal()

    @property
    def directions(self) -> list[tuple[Float[Tensor, "batch batch"], Bool[Tensor, "batch batch"]]]:
        """The matrix with a row per anchor, and its positives: images are anchors, then captions."""
        return [(self.matrix, self.is_positive), (self.matrix.T, self.is_positive.T)]

    @property
    def online(self) -> list[Float[Tensor, " batch"]]:
        """S(i, t_on) and S(i_on, t), at this hardness."""
        return [online_negative(*direction, hardness=self.hardness) for direction in self.directions]


@dataclass(frozen=True)
class LossValue:
    """The sum to minimise, and figures about it for the log (detached)."""

    total: Float[Tensor, ""]
    figures: dict[str, Tensor]


def positive_pairs(image_rows: Int[Tensor, " batch"], *, mask_positives: bool) -> Bool[Tensor, "batch batch"]:
    """Mark the entries of the online matrix that are no negatives.

    A batch may hold two captions of one image, so positives are not just the diagonal. The official code
    excludes only the diagonal (`mask_positives=False`).

    >>> positive_pairs(torch.tensor([7, 3, 7]), mask_positives=True).int()
    tensor([[1, 0, 1],
            [0, 1, 0],
            [1, 0, 1]], dtype=torch.int32)
    """
    if not mask_positives:
        return torch.eye(len(image_rows), dtype=torch.bool, device=image_rows.device)
    return image_rows[:, None] == image_rows[None, :]
