"""NAAF: Negative-Aware Attention Framework for Image-Text Matching (Zhang et al., CVPR 2022)."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aoq.models.attention import Block, masked_softmax
from aoq.models.base import AttentionDirection, Code, PositiveNumber, real_fragments
from aoq.models.fragments import FragmentModel

FEWEST_WORDS = 200
PROPAGATION = 5.0
LARGEST_EXPONENT = 50.0  # of a finite alpha*
_TOLERANCE = 1e-4
TIED = 1e-6  # the caption's own image may be in the batch twice, and score otherwise by rounding


class NAAF(FragmentModel):
    """A word without any fitting region counts against the pair. Text-to-image; no weights beyond the encoders.

    With s = <word, region> and the threshold t between matched and mismatched words, a pair's similarity is the mean
    over its words of min(max_r s - t, 0) + cos(word, sum of regions with s > t) + sum_r attention_r s.

    Training uses `threshold`, estimated once a step from the online matrix (the official code moves it within the
    matrix, caption by caption); evaluation uses `safe_threshold`, mu+ - 3 sigma+, and decides by max_r s - t
    propagated over like words. `alpha_schedule="adaptive"` sets the penalty on missed mismatches to alpha*, if there
    is one, at three quarters of the epochs, as in the paper; the official code keeps it.

    Args:
        temperature: Temperature of the attention.
        alpha: Cost of calling a mismatched pair matched when the threshold is learnt.
        alpha_schedule: `adaptive`: alpha* of the paper's supplement replaces `alpha`.
    """

    def __init__(
        self,
        *,
        temperature: PositiveNumber = 20.0,
        alpha: PositiveNumber = 2.0,
        alpha_schedule: Literal["fixed", "adaptive"] = "fixed",
        **encoders: Any,
    ) -> None:
        super().__init__(**encoders)
        self.temperature, self.alpha_schedule = temperature, alpha_schedule
        self.threshold, self.safe_threshold = nn.Buffer(torch.tensor(0.0)), nn.Buffer(torch.tensor(0.0))
        self.alpha = nn.Buffer(torch.tensor(alpha))
        self.statistics = nn.Buffer(torch.zeros(4))  # mu+, sigma+, mu-, sigma-

    def attend(self, block: Block, direction: AttentionDirection) -> Float[Tensor, "C W I R"]:
        """A word attends to regions above the threshold, and to nothing if there is none: its weights are 0."""
        fitting, mask = block.products > self._threshold, block.mask(3)
        return masked_softmax(self.temperature * block.products, fitting if mask is None else fitting & mask, 3)

    @property
    def _threshold(self) -> Tensor:
        return self.threshold if self.training else self.safe_threshold

    def compare(self, block: Block) -> Float[Tensor, "C I"]:
        similarity = block.products
        margin = block.real_products(3).amax(3) - self._threshold
        decisive = margin
        if not self.training:  # propagated: averaged over the caption's words, like words weighing more
            mask = None if block.word_mask is None else block.word_mask.unsqueeze(1)
            decisive = torch.bmm(masked_softmax(PROPAGATION * block.word_gram, mask, 2), margin)
        negative = torch.where(decisive < 0, margin, 0)
        weights = self.attend(block, "t2i")
        positive = (weights * similarity).sum(3) * block.inverse_norm(weights, 3)
        relevance = (super().attend(block, "t2i") * similarity).sum(3)
        return self.aggregate(negative + positive + relevance, block, "t2i")

    @torch.no_grad()
    def observe(self, images: Code, captions: Code, similarity: Float[Tensor, "pairs pairs"]) -> None:
        """Re-estimate the thresholds from the captions whose own image ranks first in the batch, or ties for it.

        Their words against their own image are the matched sample, against the least similar image the mismatched one.
        Up to 200 words thresholds stay; else they go 0.7 of the way to the estimate, or to 0 if it is outside [0, 1].
        """
        first = (similarity.diagonal() >= similarity.amax(0) - TIED).nonzero().squeeze(1)
        if int(real_fragments(captions)[first].sum()) <= FEWEST_WORDS:
            return
        own = self._best_regions(images[first], captions[first])
        other = self._best_regions(images[similarity[:, first].argmin(0)], captions[first])
        samples = [own.double(), other.double()]
        estimate = Mismatch(*(float(figure(sample)) for sample in samples for figure in (torch.mean, torch.std)))
        self.statistics.copy_(torch.tensor(estimate))
        boundary = estimate.boundary(float(self.alpha))
        if boundary is not None:
            for threshold, value in ((self.threshold, boundary), (self.safe_threshold, estimate.safe)):
                threshold.lerp_(threshold.new_tensor(value if 0 <= value <= 1 else 0.0), 0.7)

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        if self.alpha_schedule == "adaptive" and epoch == 3 * epochs // 4 and bool(self.statistics[[1, 3]].all()):
            best = Mismatch(*self.statistics.tolist()).best_alpha
            self.alpha.fill_(self.alpha if best is None else best)

    def _best_regions(self, images: Code, captions: Code) -> Float[Tensor, " words"]:
        """Compute max_r s of every real word of aligned pairs."""
        return self.pair_block(images, captions).real_products(3).amax((2, 3))[real_fragments(captions)]


class Mismatch(NamedTuple):
    """Normal distributions of max_r s over matched words (mu, sigma) and over mismatched ones."""

    mu: float
    sigma: float
    mu_other: float
    sigma_other: float

    @property
    def safe(self) -> float:
        """mu+ - 3 sigma+: 99.7 % of matched words lie above."""
        return self.mu - 3 * self.sigma

    def boundary(self, alpha: float) -> float | None:
        """Threshold t that minimises alpha P(mismatched > t) + P(matched < t), not below 0; None if there is none.

        Where the densities balance, N(t; mu+, sigma+) = alpha N(t; mu-, sigma-): the upper root of A t^2 + B t + C.
        """
        matched, other = self.sigma**2, self.sigma_other**2
        if not (matched and other):
            return None
        a = matched - other
        b = 2 * (self.mu * other - self.mu_other * matched)
        c = (self.mu_other * self.sigma) ** 2 - (self.mu * self.sigma_other) ** 2
        c += 2 * matched * other * math.log(self.sigma_other / (alpha * self.sigma) + 1e-8)
        discriminant = b * b - 4 * a * c
        if discriminant <= 0:
            return None
        root = math.sqrt(discriminant)
        # The form of the root that does not subtract nearly equal numbers: a may be 0, or nearly.
        numerator, denominator = (-2 * c, root + b) if b > 0 else (root - b, 2 * a)
        return max(0.0, numerator / denominator) if denominator else None

    @property
    def best_alpha(self) -> float | None:
        """alpha*: the penalty for which `boundary` is `safe` (the supplement's formula, its misprints corrected).

        None if there is none: `safe` is below 0, or is the other crossing of the densities.
        """
        distance = self.mu - self.mu_other - 3 * self.sigma
        exponent = (distance**2 - 9 * self.sigma_other**2) / (2 * self.sigma_other**2)
        alpha = self.sigma_other / self.sigma * math.exp(min(exponent, LARGEST_EXPONENT))
        boundary = self.boundary(alpha)
        return alpha if boundary is not None and self.safe >= 0 and abs(boundary - self.safe) < _TOLERANCE else None
