"""SCAN: Stacked Cross Attention for Image-Text Matching (Lee et al., ECCV 2018)."""

from __future__ import annotations

from typing import Any

from aoq.models.base import Aggregation, AttentionDirection, Normalisation, PositiveNumber
from aoq.models.fragments import FragmentModel

_SCAN_TEMPERATURES = {"t2i": 9.0, "i2t": 4.0}


class SCAN(FragmentModel):
    """Words attend to regions (`t2i`) or regions to words (`i2t`); the similarity aggregates their cosines.

    Args:
        direction: `t2i`: words attend to regions. `i2t`: regions attend to words.
        aggregation: Function that makes one similarity of the cosines of all queries.
        normalisation: Normalisation of products along the queries, before the softmax.
        temperature: Temperature of the attention; by default 9 for `t2i`, 4 for `i2t`.
        temperature_lse: Sharpness of `LogSumExp`, a soft maximum: the higher, the nearer to the maximum.
    """

    def __init__(
        self,
        *,
        direction: AttentionDirection = "t2i",
        aggregation: Aggregation = "LogSumExp",
        normalisation: Normalisation = "clipped_l2norm",
        temperature: PositiveNumber | None = None,
        temperature_lse: PositiveNumber = 6.0,
        **encoders: Any,
    ) -> None:
        super().__init__(**encoders)
        self.directions, self.normalisation = (direction,), normalisation
        self.temperature = _SCAN_TEMPERATURES[direction] if temperature is None else temperature
        self.aggregation, self.temperature_lse = aggregation, temperature_lse
