"""The numbers that turn similarities into logits, learnt beside the model."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

Number = float | Float[Tensor, ""]
"""One that stays, or one that is learnt."""


class LearntTemperature(nn.Module):
    """A temperature, and a bias if one is given, that are learnt with the model; calling it gives their values.

    What is learnt is log(1 / temperature), the logarithm of the scale of the logits. CLIP (section 2.5) begins at 0.07
    and never scales by more than 100, `max_scale`; SigLIP (section 3.2) begins at log 10 with a bias of -10 and has
    no such bound. Hand the parameters to the model's optimiser, without weight decay.

    >>> {name: round(value.item(), 4) for name, value in LearntTemperature(temperature=0.1, bias=-10.0)().items()}
    {'temperature': 0.1, 'bias': -10.0}
    """

    def __init__(self, *, temperature: float = 0.07, bias: float | None = None, max_scale: float = math.inf) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))
        self.bias = None if bias is None else nn.Parameter(torch.tensor(bias))
        self.max_scale = max_scale

    def forward(self) -> dict[str, Tensor]:
        with torch.no_grad():  # as CLIP does it, on the parameter: a bound on its value alone would leave no way back
            self.log_scale.clamp_(max=math.log(self.max_scale))
        found = {"temperature": (-self.log_scale).exp()}
        return found if self.bias is None else found | {"bias": self.bias}

    def values(self) -> dict[str, float]:
        """The values as numbers.

        >>> LearntTemperature(temperature=1.0).values()
        {'temperature': 1.0}
        """
        return {name: value.item() for name, value in self().items()}
