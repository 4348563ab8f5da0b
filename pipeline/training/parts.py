"""A batch in parts: some of its items at a time (`chunk`), shared out among processes, or both.

Losses see the whole batch either way. In chunks nothing is kept of a forward pass but codes and scores: where gradients
go back, each chunk is computed again with the random numbers it had (GradCache, Gao et al. 2021, arXiv 2101.06983), its
encoding and its scores alike. Unlike accumulated gradients of small batches, every pair has the negatives of the whole
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aoq.models.base import Captions, Code, Images, MatchingModel, concatenate
from aoq.pipeline.losses.similarities import LossValue
from aoq.pipeline.training.processes import ALONE, Processes
from aoq.pipeline.training.scoring import Aligned, AtOnce, Scores, bare
from aoq.pipeline.training.shared_statistics import has_batch_norm, shared_statistics


@dataclass(frozen=True)
class Cut:
    """Division of batches: `chunk` items at a time, and among which processes."""

    chunk: int | None = None
    processes: Processes = ALONE

    def check(self, model: MatchingModel, *, gradient_checkpointing: bool = False) -> None:
        """Refuse a model that would learn differently in parts."""
        if self.chunk is not None and has_batch_norm(model):
            raise ValueError(
                f"{type(model).__name__} has BatchNorm, whose statistics are of the whole batch: it cannot be trained "
                "in chunks; leave `chunk` out, or train it by several processes."
            )
        towers = [tower.network for tower in model.towers.values()] if gradient_checkpointing else []
        if self.processes.are_several and any(map(has_batch_norm, towers)):
            raise ValueError(
                f"a tower of this {type(model).__name__} has BatchNorm, whose statistics {self.processes.count} "
                "processes share: they cannot compute it again; leave `gradient_checkpointing` out."
            )

    def for_batch(self, size: int) -> Cut:
        """Fit the cut to a batch: too few pairs to share are computed by each process, with the leader's gradients."""
        return replace(self, processes=ALONE) if size < self.processes.count else self

    def gather(self, of_batch: Cut) -> Callable[[list[nn.Parameter]], None]:
        """Return what adds up the gradients of a batch that was cut so: the leader's alone if each computed it."""
        return partial(self.processes.add_up_gradients, counts=of_batch is self or self.processes.leads)

    def scores(self, model: MatchingModel, images: Images, captions: Captions, size: int) -> Scores:
        """Make the scores of this process's part of a batch of `size` pairs."""
        if self.chunk is None and not self.processes.are_several:
            return AtOnce(model, images, captions)
        return InParts(model, images, captions, size, self)


WHOLE = Cut()


class InParts(Scores):
    """Chunks of codes, by group, of this process's part of a batch; its scores and losses are the whole batch's."""

    def __init__(self, model: MatchingModel, images: Images, captions: Captions, size: int, cut: Cut) -> None:
        self._model, self._size, self._processes = model, size, cut.processes
        self._replays = cut.chunk is not None
        own, groups = len(images) // images.groups, images.groups
        step = cut.chunk or own
        self._chunks = [slice(start, min(start + step, own)) for start in range(0, own, step)]
        rows = [[slice(g * own + c.start, g * own + c.stop) for c in self._chunks] for g in range(groups)]
        self._words = [captions[one] for one in rows[0]]
        with shared_statistics(model, cut.processes):
            self._images, self._captions = (
                self._encoded(encode, items, rows)
                for encode, items in ((model.encode_images, images), (model.encode_captions, captions))
            )
        self._all_captions = cut.processes.gather_code(_joined(self._captions[0]), size)

    def matrix(self, is_sparse: Callable[[], bool]) -> Float[Tensor, "batch batch"]:
        score = self._model.similarity
        with shared_statistics(self._model, self._processes):
            rows = [self._run(score, bare(images), self._all_captions) for images in self._images[0]]
        return self._processes.gather_alike(torch.cat(rows), self._size)

    def pair_lists(self, wanted: Sequence[tuple[int, int]]) -> Sequence[Float[Tensor, " batch"]]:
        lists = []
        for of_images, of_captions in wanted:
            chunks = zip(self._images[of_images], self._captions[of_captions], strict=True)
            scores = [self._run(self._model.pair_similarity, bare(images), captions) for images, captions in chunks]
            lists.append(torch.cat(scores))
        return list(self._processes.gather_alike(torch.stack(lists, dim=1), self._size).unbind(1))

    def auxiliary(self) -> Float[Tensor, ""] | None:
        chunks = zip(self._images[0], self._words, strict=True)
        losses = [self._run(self._model.auxiliary_loss, images, words) for images, words in chunks]
        if losses[0] is None:
            return None
        means = [loss * (len(words) / self._size) for loss, words in zip(losses, self._words, strict=True)]
        return self._processes.total(torch.stack(means).sum())

    def besides(self, loss: Aligned) -> LossValue:
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
                images = self._processes.gather_code(_joined(self._images[0]), self._size)
            self._model.observe(images, self._all_captions, matrix)

    def _encoded(self, encode: Callable[[Any], Code], items: Any, rows: Sequence[Sequence[slice]]) -> list[list[Code]]:
        """Encode each chunk of each group; all in one pass if none is computed again."""
        if self._replays:
            return [[self._run(encode, items[one]) for one in group] for group in rows]
        code = encode(items)
        return [[code[one] for one in group] for group in rows]

    def _run(self, function: Callable[..., Any], *given: Any) -> Any:
        """Compute now, and in chunks again in the backward pass."""
        if not (self._replays and torch.is_grad_enabled()):
            return function(*given)
        tensor = next(part for one in given for part in vars(one).values() if isinstance(part, Tensor))
        # By the tensor it knows the device, whose random state it keeps.
        return checkpoint(lambda _, *rest: function(*rest), tensor, *given, use_reentrant=False)


def _joined(chunks: Sequence[Code]) -> Code:
    return bare(chunks[0]) if len(chunks) == 1 else concatenate(chunks)
