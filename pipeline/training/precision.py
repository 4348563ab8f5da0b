"""Precision of a training: float32, or lower where models encode and compare. Losses and weights stay float32."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.models.base import Captions, Code, FragmentAttention, Images, MatchingModel
from aoq.pipeline.config.training import Precision


def in_precision(model: MatchingModel, precision: Precision, device: torch.device) -> MatchingModel:
    """Wrap the model for its trainer's precision, with the same parameters.

    Raises:
        ValueError: for a device without this precision.
    """
    is_cuda = device.type == "cuda"
    is_ampere = is_cuda and torch.cuda.get_device_capability(device) >= (8, 0)
    if not is_ampere and (precision == "tf32" or (precision == "bfloat16" and is_cuda)):
        others = '"float32" or "bfloat16"' if not is_cuda else '"float32"'
        raise ValueError(
            f'precision = "{precision}" requires an NVIDIA Ampere or newer GPU, and this training runs on {device}; '
            f"choose {others}, or another [engine] device."
        )
    return InBfloat16(model, device.type) if precision == "bfloat16" else model


class InBfloat16(MatchingModel):
    """A model that encodes under autocast, and compares so if it attends to fragments; its results are float32.

    Dot products of vectors are computed in float32: rounded to bfloat16, 18 % of anchors had another hardest negative.
    """

    def __init__(self, model: MatchingModel, device_type: str) -> None:
        super().__init__()
        self.model, self.scores_alone = model, model.scores_alone
        self._device_type = device_type

    def _autocast(self, *, enabled: bool = True) -> torch.autocast:
        # No cache: within a caller's autocast it would hold the weights of an earlier step.
        return torch.autocast(self._device_type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def encode_images(self, images: Images) -> Code:
        with self._autocast():
            return _as_float32(self.model.encode_images(images))

    def encode_captions(self, captions: Captions) -> Code:
        with self._autocast():
            return _as_float32(self.model.encode_captions(captions))

    def similarity(self, images: Code, captions: Code) -> Float[Tensor, "images captions"]:
        with self._autocast(enabled=self.model.attends):
            return self.model.similarity(images, captions).float()

    def pair_similarity(self, images: Code, captions: Code) -> Float[Tensor, " pairs"]:
        with self._autocast(enabled=self.model.attends):
            return self.model.pair_similarity(images, captions).float()

    def fragment_attention(self, images: Code, captions: Code) -> tuple[FragmentAttention, ...]:
        return self.model.fragment_attention(images, captions)

    def auxiliary_loss(self, images: Code, captions: Captions) -> Float[Tensor, ""] | None:
        with self._autocast():
            loss = self.model.auxiliary_loss(images, captions)
        return None if loss is None else loss.float()

    @property
    def observes(self) -> bool:
        return self.model.observes

    def observe(self, images: Code, captions: Code, similarity: Float[Tensor, "pairs pairs"]) -> None:
        self.model.observe(images, captions, similarity)


def _as_float32(code: Code) -> Code:
    parts = {name: part for name, part in vars(code).items() if isinstance(part, Tensor)}
    return replace(code, **{name: part.float() for name, part in parts.items() if part.dtype == torch.bfloat16})
