"""Draw and read the batch of any step, ahead of the steps that train on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from aoq.models.base import Captions, Images
from aoq.models.packing import sent
from aoq.pipeline.batches.order import KeptOrder
from aoq.pipeline.config.losses import Loss, online_version
from aoq.pipeline.config.training import Training
from aoq.pipeline.data.batches import PairData, epoch_order, step_rng
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.losses import LOSSES
from aoq.pipeline.losses.guide import guided_matches
from aoq.pipeline.training.chunks import WHOLE, Cut
from aoq.pipeline.training.sampler import Draw, Group, Offline, Sampler

T = TypeVar("T")


@dataclass(frozen=True)
class Batch:
    """Images and captions in groups of B: the anchors, then the offline negatives, then their companions, as drawn.

    A process holds its own part of each group; the other fields cover all anchors.
    """

    images: Images
    captions: Captions
    image_rows: Int[Tensor, " batch"]
    """A number per anchor image, equal for copies of one photograph."""
    corresponding: Bool[Tensor, " batch"] | None = None
    """True where the pairs derived from the offline negatives are true pairs."""
    match_probability: Float[Tensor, "2 batch"] | None = None
    """Probability that the offline negatives match their anchors, for soft margins."""
    guided: Bool[Tensor, "batch batch"] | None = None
    """Pairs that the guide excludes as in-batch negatives."""

    def to(self, device: torch.device) -> Batch:
        moved = self._map_tensors(lambda tensor: sent(tensor, device))
        return replace(self, images=self.images.to(device), captions=self.captions.to(device), **moved)

    def pin_memory(self) -> Batch:
        pinned = self._map_tensors(Tensor.pin_memory)
        return replace(self, images=self.images.pin_memory(), captions=self.captions.pin_memory(), **pinned)

    def _map_tensors(self, function: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        return {name: function(value) for name, value in vars(self).items() if isinstance(value, Tensor)}


def epoch_loss(training: Training, epoch: int) -> Loss:
    """Return the warm-up loss of the first epochs, then the round's own.

    A warm-up keeps the online margin of the loss that it precedes, and its treatment of positives.
    """
    if epoch >= len(training.warmup):
        return training.loss
    return online_version(training.loss, training.warmup[epoch])


def offline_draws(loss: Loss) -> Offline:
    """Return which offline negatives a batch of this loss contains."""
    return "triples" if loss.makes_triples else LOSSES[loss.name].offline


def draw_batch(
    pairs: PairData,
    sampler: Sampler | None,
    offline: Offline,
    captions: Int32[np.ndarray, " batch"],
    rng: np.random.Generator,
    epoch: int,
) -> Draw:
    """Draw a step's rows of the split and the table; `epoch` counts from the first epoch that draws."""
    if sampler is None or offline == "none":
        return Draw([Group(pairs.split.image_of[captions], captions)])
    return sampler.draw_for(offline, captions, rng, epoch)


def read_batch(pairs: PairData, draw: Draw, part: slice = slice(None)) -> Batch:
    """Read the images and captions of this part of each group."""
    images, captions = (np.concatenate([rows[part] for rows in side]) for side in zip(*draw.groups, strict=True))
    anchors, identity = draw.groups[0].images, pairs.split.identity
    return Batch(
        replace(pairs.images(images), groups=len(draw.groups)),
        pairs.captions(captions),
        torch.from_numpy((anchors if identity is None else identity[anchors]).astype(np.int64)),
        *(None if part is None else torch.from_numpy(part) for part in (draw.corresponding, draw.match_probability)),
    )


@dataclass(frozen=True)
class Guide:
    """The teacher's vectors of the training split, and the margin of `guided_matches`."""

    vectors: EmbeddingStore
    margin: float

    def matches(self, group: Group) -> Bool[Tensor, "batch batch"]:
        """Mark the pairs of a batch that are excluded as negatives."""
        scores = self.vectors.images[group.images] @ self.vectors.captions[group.captions].T
        return guided_matches(torch.from_numpy(scores), margin=self.margin)


class Drawn(NamedTuple):
    """A batch, the state of its random numbers after drawing, and figures about the draw."""

    batch: Batch
    rng: np.random.Generator
    figures: dict[str, float]


@dataclass(frozen=True)
class BatchMaker:
    """Makes the batch of any step, as a pure function of (seed, epoch, step).

    Batches for a GPU lie in pinned memory, so that no step waits for a copy.
    """

    pairs: PairData
    sampler: Sampler | None
    guide: Guide | None
    training: Training
    seed: int
    cut: Cut = WHOLE
    """Division of a batch among processes, each of which reads its own part."""
    is_pinned: bool = False
    orders: KeptOrder | None = None
    """Order of the captions in each epoch that draws, counted from the first of these; random by default."""

    def __call__(self, epoch: int, step: int) -> Drawn:
        size = self.training.batch_size
        rng = step_rng(seed=self.seed, epoch=epoch, step=step)
        drawing_epoch = epoch - len(self.training.warmup)  # the warm-up draws nothing
        if self.orders is not None and drawing_epoch >= 0:
            order = self.orders(drawing_epoch)
        else:
            order = epoch_order(self.pairs.split.caption_count, seed=self.seed, epoch=epoch)
        offline, captions = offline_draws(epoch_loss(self.training, epoch)), order[step * size :][:size]
        draw = draw_batch(self.pairs, self.sampler, offline, captions, rng, drawing_epoch)
        anchors = draw.groups[0]
        own = self.cut.for_batch(len(anchors.images)).processes.rows(len(anchors.images))
        batch = read_batch(self.pairs.augmented(self.training.augment, self.seed, epoch), draw, own)
        figures = {"collision_rate": draw.collision_rate}
        if self.guide is not None:
            guided, size = self.guide.matches(anchors), len(anchors.images)
            share = (int(guided.sum()) - size) / max(1, size * (size - 1))  # off the diagonal, all of which is marked
            batch, figures = replace(batch, guided=guided), {"guided_share": share, **figures}
        return Drawn(batch.pin_memory() if self.is_pinned else batch, rng, figures)


def read_ahead(make: Callable[[int], T], steps: Iterable[int], workers: int) -> Generator[T]:
    """Yield `make(step)` for each step, in order, computed by threads ahead of time; without `workers`, on demand.

    At most `workers` + 1 results wait in memory. `make` is a pure function of the step, so the number of workers
    changes nothing; an error is raised when its step is due. Closing the generator waits for the steps in progress.

    >>> list(read_ahead(lambda step: step**2, range(4), workers=2))
    [0, 1, 4, 9]
    """
    if not workers:
        yield from map(make, steps)
        return
    # Threads, since numpy releases the GIL while it copies. Processes of torch's DataLoader took as long or longer
    # (benchmarks/reading.py): their batches pass through shared memory, and a fork beside threads may hang.
    pool, waiting = ThreadPoolExecutor(workers, "batches"), deque[Future[T]]()
    try:
        for step in steps:
            waiting.append(pool.submit(make, step))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
