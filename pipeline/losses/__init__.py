"""Registry of losses by name. A new loss is a function and a line in `LOSSES`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.pipeline.losses.aoq import (
    adap_off_quin,
    adap_off_tri,
    adap_pos_quin,
    off_quin,
    off_tri,
    online_quin,
    online_triplet,
    only_offline,
    squared_off_quin,
    sum_triplet,
)
from aoq.pipeline.losses.info_nce import adap_info_nce, info_nce, sigmoid_loss
from aoq.pipeline.losses.similarities import LossFunction, OfflineSimilarities, Similarities


@dataclass(frozen=True)
class LossKind:
    """A loss on similarities, and its draws from the table."""

    function: LossFunction
    offline: Literal["none", "anchors", "quintuplet"]
    """What it draws: nothing, the anchors' negatives, or their companions as well."""
    is_sparse: bool = True
    """Whether few entries of the matrix have a gradient at full hardness: positives, and the hardest negatives."""


LOSSES: dict[str, LossKind] = {
    "sum": LossKind(sum_triplet, "none", is_sparse=False),
    "online": LossKind(online_triplet, "none"),
    "offtri": LossKind(off_tri, "anchors"),
    "adapofftri": LossKind(adap_off_tri, "anchors"),
    "offquin": LossKind(off_quin, "quintuplet"),
    "adapoffquin": LossKind(adap_off_quin, "quintuplet"),
    "onlyoffline": LossKind(only_offline, "quintuplet"),
    "onlinequin": LossKind(online_quin, "anchors"),
    "adapposquin": LossKind(adap_pos_quin, "quintuplet"),
    "squaredoffquin": LossKind(squared_off_quin, "quintuplet"),
    "infonce": LossKind(info_nce, "anchors", is_sparse=False),
    "adapinfonce": LossKind(adap_info_nce, "anchors", is_sparse=False),
    "sigmoid": LossKind(sigmoid_loss, "anchors", is_sparse=False),
}


def plateau(loss: LossFunction, batch_size: int, match_probability: Float[Tensor, "2 batch"] | None = None) -> float:
    """Return the loss of a model that gives every pair the same similarity: the plateau of a collapsed training.

    2 * margin * B for the online loss, 2 * beta * margin_online * B for AdapOffQuin (with margin_offline = 0); less
    with the soft margins that `match_probability` makes.

    >>> round(plateau(lambda pairs: online_triplet(pairs, margin=0.2), 128), 4)
    51.2
    """
    return float(collapsed_cost(loss, batch_size, match_probability))


@torch.no_grad()
def collapsed_cost(
    loss: LossFunction,
    batch_size: int,
    match_probability: Float[Tensor, "2 batch"] | None = None,
    device: torch.device | None = None,
) -> Float[Tensor, ""]:
    """Return `plateau` as a tensor on a device, without waiting for it."""
    same = torch.zeros(batch_size, device=device)
    offline = OfflineSimilarities(same, same, same, same, match_probability)
    own = torch.eye(batch_size, dtype=torch.bool, device=device)
    return loss(Similarities(same.expand(batch_size, -1), own, offline)).total
