"""Scores of a step's batch by its model: all of it encoded at once, and scored at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from jaxtyping import Float
from torch import Tensor

from aoq.models.base import Captions, Code, Images, MatchingModel, concatenate
from aoq.pipeline.losses.similarities import LossValue

Aligned = Callable[[MatchingModel, Code, Code, slice], LossValue]
"""A loss on the codes of aligned pairs, given their rows among the batch's anchors; summed over the pairs."""


class Scores(ABC):
    """Scores of one batch, whose images and captions are groups of equal size, the anchors first."""

    @abstractmethod
    def matrix(self) -> Float[Tensor, "batch batch"]:
        """Score the image of every anchor against the caption of every anchor."""

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
        self._images, self._captions = model.encode_images(images), model.encode_captions(captions)

    def matrix(self) -> Float[Tensor, "batch batch"]:
        return self._model.similarity(self._images[: self._size], self._captions[: self._size])

    def pair_lists(self, wanted: Sequence[tuple[int, int]]) -> Sequence[Float[Tensor, " batch"]]:
        images, captions = (
            concatenate([code[place * self._size :][: self._size] for place in side])
            for code, side in zip((self._images, self._captions), zip(*wanted, strict=True), strict=True)
        )
        return self._model.pair_similarity(images, captions).split(self._size)

    def auxiliary(self) -> Float[Tensor, ""] | None:
        return self._model.auxiliary_loss(self._images[: self._size], self._words[: self._size])

    def besides(self, loss: Aligned) -> LossValue:
        return loss(self._model, self._images[: self._size], self._captions[: self._size], slice(0, self._size))

    def observe(self, matrix: Float[Tensor, "batch batch"]) -> None:
        self._model.observe(self._images[: self._size], self._captions[: self._size], matrix)
