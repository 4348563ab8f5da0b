"""Exponential moving average of a model's weights, evaluated and published in their place."""

from __future__ import annotations

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Average(AveragedModel):
    """average ← decay · average + (1 − decay) · weights, after every step; buffers are the model's own."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, multi_avg_fn=get_ema_multi_avg_fn(decay))
        self.update_parameters(model)  # the first one copies
