"""Scores of a step's batch by its model: all of it encoded at once, and scored at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.models.base import Captions, Code, Images, MatchingModel
from aoq.pipeline.losses.similarities import LossValue
from aoq.pipeline.training.rescored import AsBefore, Entries, any_number, pays, rescored

Aligned = Callable[[MatchingModel, Code, Code, slice], LossValue]
"""A loss on the codes of aligned pairs, given their rows among the batch's anchors; summed over the pairs."""


class Scores(ABC):
    """Scores of one batch, whose images and captions are groups of equal size, the anchors first."""

    @abstractmethod
    def matrix(self, entries: Entries = any_number) -> Float[Tensor, "batch batch"]:
        """Score the image of every anchor against the caption of every anchor.

        If the loss gives few `entries` per anchor a gradient, it may score these again in place of keeping a graph.
        """

    @abstractmethod
    def pair_lists(self, wanted: Sequence[tuple[int, int]]) -> Sequence[Float[Tensor, " batch"]]:
        """Score aligned pairs, for each (group of images, group of captions)."""

    @abstractmethod
    def auxiliary(self) -> Float[Tensor, ""] | None:
        """Compute the model's auxiliary loss on the anchors."""

    @abstractmethod
    def besides(self, loss: Aligned) -> LossValue:
        """Compute a further loss on the codes of the anchors."""

    @abstractmethod
    def observe(self, matrix: Float[Tensor, "batch batch"]) -> None:
        """Show the model the anchors and their scores."""


class AtOnce(Scores):
    """One pass: the plain definition that any other way to score must equal."""

    def __init__(self, model: MatchingModel, images: Images, captions: Captions) -> None:
        self._model, self._words, self._size = model, captions, len(images) // images.groups
        self._as_before = AsBefore(model)
        self._images, self._captions = model.encode_images(images), model.encode_captions(captions)

    def matrix(self, entries: Entries = any_number) -> Float[Tensor, "batch batch"]:
        images, captions = self._images[: self._size], self._captions[: self._size]
        if pays(self._model, images, self._size, entries):
            return rescored(self._model, images, captions, self._as_before)
        return self._model.similarity(images, captions)

    def pair_lists(self, wanted: Sequence[tuple[int, int]]) -> Sequence[Float[Tensor, " batch"]]:
        images = replace(self._images, context=None, context_mask=None)  # the auxiliary loss's, too large to gather
        group = torch.arange(self._size)
        image_rows, caption_rows = (
            torch.cat([group + place * self._size for place in side]) for side in zip(*wanted, strict=True)
        )
        return self._model.pair_similarity(images[image_rows], self._captions[caption_rows]).split(self._size)

    def auxiliary(self) -> Float[Tensor, ""] | None:
        return self._model.auxiliary_loss(self._images[: self._size], self._words[: self._size])

    def besides(self, loss: Aligned) -> LossValue:
        return loss(self._model, self._images[: self._size], self._captions[: self._size], slice(0, self._size))

    def observe(self, matrix: Float[Tensor, "batch batch"]) -> None:
        self._model.observe(self._images[: self._size], self._captions[: self._size], matrix)
