"""SigLIP's sigmoid loss (Zhai et al. 2023, section 3.2, algorithm 1), with offline negatives as further negatives."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from aoq.pipeline.losses.hinge import NO_NEGATIVE, Number
from aoq.pipeline.losses.similarities import LossValue, Similarities, levelled, offline_figures


def sigmoid_loss(pairs: Similarities, *, temperature: Number = 0.1, bias: Number = -10.0) -> LossValue:
    """Classify each pair as match or negative on its own: no softmax, and each pair of the batch counts once.

        L = sum over pairs of log(1 + e^(-z (s / tau + b)))        z = 1 for a match, -1 for a negative

    Negatives are those of the batch, S(i, t_off) and S(i_off, t). An offline negative that matches with probability p
    has weight 1 - p. It is a sum like the other losses, where SigLIP divides by the batch size. Positives off the
    diagonal are left out.

    >>> matrix = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    >>> sigmoid_loss(Similarities(matrix, torch.eye(2).bool()), temperature=0.1, bias=-5.0).total
    tensor(1.3997)
    """
    total, offline = _add_up(pairs, temperature, bias)
    figures = {"online": (total - offline).detach(), **offline_figures(pairs)}
    if pairs.offline is not None:
        figures["offline"] = offline.detach()
    with torch.no_grad():
        figures["plateau"], _ = _add_up(levelled(pairs), temperature, bias)
    figures |= {"temperature": torch.as_tensor(temperature).detach(), "bias": torch.as_tensor(bias).detach()}
    return LossValue(total, figures)


def _add_up(pairs: Similarities, temperature: Number, bias: Number) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the sum over all pairs, and over the offline ones among them."""

    def logits(similarity: Tensor) -> Tensor:
        return similarity / temperature + bias

    online = softplus(logits(pairs.matrix)).masked_fill(pairs.is_positive, 0.0).sum()
    total, offline = softplus(-logits(pairs.positive)).sum() + online, pairs.matrix.new_zeros(())
    if pairs.offline is not None:
        drawn = torch.stack(pairs.offline.drawn)
        missing = drawn < NO_NEGATIVE / 2
        # Divided by a temperature, float16's similarity of a missing negative is infinite, and has no gradient.
        cost = softplus(logits(drawn.masked_fill(missing, 0.0))).masked_fill(missing, 0.0)
        probability = pairs.offline.match_probability
        offline = (cost if probability is None else cost * (1 - probability)).sum()
    return total + offline, offline
