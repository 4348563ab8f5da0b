"""Building blocks of margin losses."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

NO_NEGATIVE = -1e4
"""Similarity of a missing negative: below every model's range, yet finite."""
Number = float | Float[Tensor, "..."]
"""A number, or a tensor of numbers that stays on its device."""
Rows = Float[Tensor, "anchors candidates"]
Marks = Bool[Tensor, "anchors candidates"]


def hinge(positive: Float[Tensor, ...], negative: Float[Tensor, ...], *, margin: Number) -> Float[Tensor, ...]:
    """[margin - positive + negative]_+, elementwise.

    >>> hinge(torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.1]), margin=0.2)
    tensor([0.1000, 0.0000])
    """
    return (margin - positive + negative).clamp(min=0)


def squared_hinge(positive: Float[Tensor, ...], negative: Float[Tensor, ...], *, margin: Number) -> Float[Tensor, ...]:
    """[margin - positive + negative]_+ squared: larger violations have larger gradients.

    >>> squared_hinge(torch.tensor([0.5, 0.5]), torch.tensor([0.4, 0.1]), margin=0.2)
    tensor([0.0100, 0.0000])
    """
    return hinge(positive, negative, margin=margin).square()


def hardest_negative(similarity: Rows, is_positive: Marks) -> Float[Tensor, " anchors"]:
    """Return the highest similarity of each row among its negatives, VSE++; AOQ eq. (2).

    >>> hardest_negative(torch.tensor([[0.9, 0.3], [0.4, 0.8]]), torch.eye(2).bool())
    tensor([0.3000, 0.4000])
    """
    return similarity.masked_fill(is_positive, NO_NEGATIVE).max(dim=1).values


def online_negative(similarity: Rows, is_positive: Marks, *, hardness: Number) -> Float[Tensor, " anchors"]:
    """Return the similarity of each row's online negative: a mean of its negatives that favours more similar ones.

        s_on = sum over j of p_j s_j,    p = softmax(hardness * s) over the row's negatives, without gradient

    A hardness of 0 gives the mean of all negatives, infinity the hardest one.

    >>> similarity = torch.tensor([[0.9, 0.4, 0.2]])
    >>> [online_negative(similarity, similarity > 0.5, hardness=h).item() for h in (0.0, 10.0, math.inf)]
    [0.3..., 0.376..., 0.4...]
    """
    if isinstance(hardness, Tensor):  # compute both: choosing one would wait for the device
        mean = _mean_negative(similarity, is_positive, hardness.nan_to_num(posinf=0.0))
        return torch.where(hardness.isinf(), hardest_negative(similarity, is_positive), mean)
    if math.isinf(hardness):
        return hardest_negative(similarity, is_positive)
    return _mean_negative(similarity, is_positive, hardness)


def _mean_negative(similarity: Rows, is_positive: Marks, hardness: Number) -> Float[Tensor, " anchors"]:
    without = is_positive.all(dim=1, keepdim=True)
    share = (similarity.detach() * hardness).masked_fill(is_positive & ~without, -math.inf).softmax(dim=1)
    return (share * similarity).sum(dim=1).masked_fill(without[:, 0], NO_NEGATIVE)
