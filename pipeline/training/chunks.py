"""A batch in parts: in chunks of some items, shared among processes, or both. The numbers are those of the whole batch.

In bfloat16, models encode under autocast, and compare so if they attend to fragments; losses and weights stay float32.
Dot products of vectors are computed in float32: rounded to bfloat16, 18 % of anchors had another hardest negative.

A chunked forward pass keeps only codes and scores; the backward pass computes each chunk again with its random numbers
(GradCache, Gao et al. 2021, arXiv 2101.06983). Losses, and so all pairs' negatives, use the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from aoq.models.base import Captions, Code, Images, MatchingModel, concatenate
from aoq.models.layers import has_batch_norm
from aoq.pipeline.config.training import Precision
from aoq.pipeline.losses.pace import SYNCHRONOUS
from aoq.pipeline.losses.similarities import LossValue
from aoq.pipeline.training.processes import ALONE, Processes, shared_statistics

Score = Callable[[Code, Code], Tensor]
AlignedLoss = Callable[[MatchingModel, Code, Code, slice], LossValue]
"""A loss on the codes of aligned pairs, given their rows among the batch's anchors; summed over the pairs."""


def check_precision(precision: Precision, device: torch.device) -> None:
    is_cuda = device.type == "cuda"
    is_ampere = is_cuda and torch.cuda.get_device_capability(device) >= (8, 0)
    if not is_ampere and (precision == "tf32" or (precision == "bfloat16" and is_cuda)):
        others = '"float32" or "bfloat16"' if not is_cuda else '"float32"'
        raise ValueError(
            f'precision = "{precision}" requires an NVIDIA Ampere or newer GPU, but this training runs on {device}; '
            f"choose {others}, or another [engine] device."
        )


@dataclass(frozen=True)
class Cut:
    """How batches are computed: in chunks of some items, shared among processes, in bfloat16."""

    chunk: int | None = None
    processes: Processes = ALONE
    in_bfloat16: bool = False

    def check(self, model: MatchingModel, *, gradient_checkpointing: bool = False) -> None:
        """Refuse a model that would learn differently in parts."""
        if self.chunk is not None and has_batch_norm(model):
            raise ValueError(
                f"{type(model).__name__} has BatchNorm, whose statistics need the whole batch, so it cannot be trained "
                "in chunks; leave `chunk` out, or train it by several processes."
            )
        towers = [tower.network for tower in model.towers.values()] if gradient_checkpointing else []
        if self.processes.are_several and any(map(has_batch_norm, towers)):
            raise ValueError(
                f"a tower of this {type(model).__name__} has BatchNorm, whose statistics {self.processes.count} "
                "processes share, so it cannot be computed again; leave `gradient_checkpointing` out."
            )

    def sharing(self, size: int) -> Processes:
        """Return the processes that share a batch; each computes all of one that has too few pairs to share."""
        return ALONE if size < self.processes.count else self.processes

    def rows(self, size: int) -> slice:
        """Return this process's part of a batch."""
        return self.sharing(size).rows(size)


UNCUT = Cut()


class BatchScores:
    """The scores of a batch, from codes of this process's part by group and chunk; whole, it is one chunk."""

    def __init__(self, model: MatchingModel, images: Images, captions: Captions, size: int, cut: Cut) -> None:
        self._model, self._size, self._processes = model, size, cut.sharing(size)
        self._autocast = images.features.device.type if cut.in_bfloat16 else None
        self._score = self._in_precision(model.similarity, attends=model.attends)
        self._score_pairs = self._in_precision(model.pair_similarity, attends=model.attends)
        self._replays = cut.chunk is not None
        self._is_whole = cut.chunk is None and not self._processes.are_several
        own, groups = len(images) // images.groups, images.groups
        step = cut.chunk or own
        self._chunks = [slice(start, min(start + step, own)) for start in range(0, own, step)]
        rows = [[slice(g * own + c.start, g * own + c.stop) for c in self._chunks] for g in range(groups)]
        self._words = [captions[chunk] for chunk in rows[0]]
        with shared_statistics(model, self._processes):
            self._images, self._captions = (
                self._encode(self._in_precision(encode), items, rows)
                for encode, items in ((model.encode_images, images), (model.encode_captions, captions))
            )
        self._all_captions = self._processes.gather_code(_join_chunks(self._captions[0]), size)

    def matrix(self, is_sparse: Callable[[], bool]) -> Float[Tensor, "batch batch"]:
        """Score all pairs of the anchors; for a sparse loss, score those few that have a gradient again."""
        parts, captions = [bare(images) for images in self._images[0]], self._all_captions
        if self._is_whole and self._model.scores_alone and captions.vectors.device.type in SYNCHRONOUS:
            tensors = _tensors(*parts, captions)
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors) and is_sparse():
                return _score_again(self._score, self._score_pairs, *parts, captions, *tensors)
        return self._score_all(parts, captions)

    def between(self, images: int, captions: int) -> Float[Tensor, "batch batch"]:
        """Score all images of one group with all captions of another."""
        code = self._all_captions
        if captions:
            code = self._processes.gather_code(_join_chunks(self._captions[captions]), self._size)
        return self._score_all([bare(chunk) for chunk in self._images[images]], code)

    def _score_all(self, images: Sequence[Code], captions: Code) -> Float[Tensor, "batch batch"]:
        with shared_statistics(self._model, self._processes):
            rows = [self._run(self._score, chunk, captions) for chunk in images]
        return self._processes.gather_for_loss(torch.cat(rows), self._size)

    def pair_lists(self, wanted: Sequence[tuple[int, int]]) -> Sequence[Float[Tensor, " batch"]]:
        """Score aligned pairs, for each (group of images, group of captions)."""
        if self._is_whole:  # in one pass
            images, captions = (
                concatenate([code[group][0] for group in side])
                for code, side in zip((self._images, self._captions), zip(*wanted, strict=True), strict=True)
            )
            return self._score_pairs(images, captions).split(self._size)
        lists = []
        for of_images, of_captions in wanted:
            chunks = zip(map(bare, self._images[of_images]), self._captions[of_captions], strict=True)
            lists.append(torch.cat([self._run(self._score_pairs, *codes) for codes in chunks]))
        return list(self._processes.gather_for_loss(torch.stack(lists, dim=1), self._size).unbind(1))

    def auxiliary(self) -> Float[Tensor, ""] | None:
        chunks = zip(self._images[0], self._words, strict=True)
        compute = self._in_precision(self._model.auxiliary_loss)
        losses = [self._run(compute, images, words) for images, words in chunks]
        if losses[0] is None:
            return None
        means = [loss * (len(words) / self._size) for loss, words in zip(losses, self._words, strict=True)]
        return self._processes.total(torch.stack(means).sum())

    def aligned(self, loss: AlignedLoss) -> LossValue:
        """Compute a further loss on the codes of the anchors."""
        before = self._processes.rows(self._size).start
        values = [
            self._run(loss, self._model, bare(images), captions, slice(before + rows.start, before + rows.stop))
            for images, captions, rows in zip(self._images[0], self._captions[0], self._chunks, strict=True)
        ]
        figures = {
            name: self._processes.add_up(torch.stack([value.figures[name] for value in values]).sum())
            for name in values[0].figures
        }
        return LossValue(self._processes.total(torch.stack([value.total for value in values]).sum()), figures)

    def observe(self, matrix: Float[Tensor, "batch batch"]) -> None:
        if self._model.observes:
            with torch.no_grad():
                images = self._processes.gather_code(_join_chunks(self._images[0]), self._size)
            self._model.observe(images, self._all_captions, matrix)

    def _in_precision(self, function: Callable[..., Any], *, attends: bool = True) -> Callable[..., Any]:
        """Let the function compute in the training's precision; its results are float32."""
        if (device := self._autocast) is None:
            return function

        def rounded(*inputs: Any) -> Any:
            # No cache: within a caller's autocast it would hold the weights of an earlier step.
            with torch.autocast(device, torch.bfloat16, enabled=attends, cache_enabled=False):
                return _as_float32(function(*inputs))

        return rounded

    def _encode(self, encode: Callable[[Any], Code], items: Any, rows: Sequence[Sequence[slice]]) -> list[list[Code]]:
        """Encode each chunk of each group; all in one pass if none is computed again."""
        if self._replays:
            return [[self._run(encode, items[chunk]) for chunk in group] for group in rows]
        code = encode(items)
        return [[code[chunk] for chunk in group] for group in rows]

    def _run(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Compute now and, in chunks, again in the backward pass."""
        if not (self._replays and torch.is_grad_enabled()):
            return function(*inputs)
        # `checkpoint` keeps the random state of the device of the first tensor that it is passed.
        tensor = next(value for one in inputs for value in vars(one).values() if isinstance(value, Tensor))
        return checkpoint(lambda _, *rest: function(*rest), tensor, *inputs, use_reentrant=False)


def bare(code: Code) -> Code:
    """Return the code without the context, which is only for the auxiliary loss."""
    return replace(code, context=None, context_mask=None)


def _as_float32(result: Tensor | Code | None) -> Tensor | Code | None:
    if not isinstance(result, Code):
        return None if result is None else result.float()
    parts = {name: part for name, part in vars(result).items() if part is not None}
    return replace(result, **{name: part.float() for name, part in parts.items() if part.dtype == torch.bfloat16})


def _join_chunks(chunks: Sequence[Code]) -> Code:
    return bare(chunks[0]) if len(chunks) == 1 else concatenate(chunks)


class _ScoreAgain(torch.autograd.Function):
    """The matrix without its graph: the backward pass scores the pairs that have a gradient again.

    With hardest negatives these are about three of each row, and it takes half the time of the matrix with its graph.
    """

    @staticmethod
    def forward(ctx: Any, score: Score, score_pairs: Score, images: Code, captions: Code, *_: Tensor) -> Tensor:
        ctx.score_pairs, ctx.codes = score_pairs, (images, captions)
        return score(images, captions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        pairs = gradient.nonzero()
        if not len(pairs):  # an optimiser with momentum distinguishes a gradient of 0 from none
            pairs = pairs.new_zeros(1, 2)
        images, captions = codes = [_leaf_code(code) for code in ctx.codes]
        if captions.lengths is not None:  # sorted by length, short captions need little padding
            pairs = pairs[captions.lengths[pairs[:, 1]].argsort(stable=True)]
        for rows, columns in (some.unbind(1) for some in pairs.split(len(gradient))):
            with torch.enable_grad():
                scores = ctx.score_pairs(images[rows], _without_padding(captions[columns]))
            scores.backward(gradient[rows, columns])
        return None, None, None, None, *(one.grad for one in _tensors(*codes))


_score_again: Callable[..., Tensor] = _ScoreAgain.apply


def _tensors(*codes: Code) -> list[Tensor]:
    return [tensor for code in codes for tensor in (code.vectors, code.pooled) if tensor is not None]


def _leaf_code(code: Code) -> Code:
    pooled = None if code.pooled is None else code.pooled.detach().requires_grad_()
    return replace(code, vectors=code.vectors.detach().requires_grad_(), pooled=pooled)


def _without_padding(captions: Code) -> Code:
    longest = None if captions.lengths is None else int(captions.lengths.max())
    mask = None if captions.mask is None else captions.mask[:, :longest]
    return replace(captions, vectors=captions.vectors[:, :longest], mask=mask)
