"""Scores of a step's batch by its model: all of it encoded at once, and scored at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from aoq.models.base import Captions, Code, Images, MatchingModel, concatenate
from aoq.pipeline.losses.pace import AT_ONCE
from aoq.pipeline.losses.similarities import LossValue

Aligned = Callable[[MatchingModel, Code, Code, slice], LossValue]
"""A loss on the codes of aligned pairs, given their rows among the batch's anchors; summed over the pairs."""


class _ScoreAgain(torch.autograd.Function):
    """The matrix without its graph: the backward pass scores the pairs that have a gradient again.

    A hinge on the hardest negatives gives a gradient to about three entries of each row. To score the matrix without a
    graph, and those again with one, takes half the time of the whole matrix with its gradients.
    """

    @staticmethod
    def forward(ctx: Any, model: MatchingModel, images: Code, captions: Code, *_: Tensor) -> Tensor:
        ctx.model, ctx.codes = model, (images, captions)
        return model.similarity(images, captions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pairs = gradient.nonzero()
        if not len(pairs):  # an optimiser with momentum tells a gradient of 0 from none
            pairs = pairs.new_zeros(1, 2)
        images, captions = codes = [_leaves(code) for code in ctx.codes]
        if captions.lengths is not None:  # then short captions are padded no further than they need
            pairs = pairs[captions.lengths[pairs[:, 1]].argsort(stable=True)]
        for rows, columns in (some.unbind(1) for some in pairs.split(len(gradient))):
            with torch.enable_grad():
                scores = ctx.model.pair_similarity(images[rows], _without_padding(captions[columns]))
            scores.backward(gradient[rows, columns])
        return None, None, None, *(one.grad for one in _parts(*codes))


_score_again: Callable[..., Tensor] = _ScoreAgain.apply


def _parts(*codes: Code) -> list[Tensor]:
    return [part for code in codes for part in (code.vectors, code.pooled) if part is not None]


def _leaves(code: Code) -> Code:
    pooled = None if code.pooled is None else code.pooled.detach().requires_grad_()
    return replace(code, vectors=code.vectors.detach().requires_grad_(), pooled=pooled)


def _without_padding(captions: Code) -> Code:
    longest = None if captions.lengths is None else int(captions.lengths.max())
    mask = None if captions.mask is None else captions.mask[:, :longest]
    return replace(captions, vectors=captions.vectors[:, :longest], mask=mask)


def bare(code: Code) -> Code:
    """Return the code without the context, which is only for the auxiliary loss."""
    return replace(code, context=None, context_mask=None)


class Scores(ABC):
    """Scores of one batch, whose images and captions are groups of equal size, the anchors first."""

    @abstractmethod
    def matrix(self, is_sparse: Callable[[], bool]) -> Float[Tensor, "batch batch"]:
        """Score the image of every anchor against the caption of every anchor.

        If the loss will be sparse, so that few scores have a gradient, these may be computed again for it.
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
        self._images, self._captions = model.encode_images(images), model.encode_captions(captions)

    def matrix(self, is_sparse: Callable[[], bool]) -> Float[Tensor, "batch batch"]:
        images, captions = bare(self._images[: self._size]), bare(self._captions[: self._size])
        learns = torch.is_grad_enabled() and any(one.requires_grad for one in _parts(images, captions))
        if learns and self._model.scores_alone and images.vectors.device.type in AT_ONCE and is_sparse():
            return _score_again(self._model, images, captions, *_parts(images, captions))
        return self._model.similarity(images, captions)

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
