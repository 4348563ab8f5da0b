"""Draw and read the batch of any step, ahead of the steps that train on it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int32
from torch import Tensor

from aoq.models.base import Captions, Images, MatchingModel, concatenate
from aoq.models.packing import sent
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.embedding import SCORED_CAPTIONS, SCORED_IMAGES, EmbeddingStore
from aoq.pipeline.engine import products_in
from aoq.pipeline.search.problem import blocks
from aoq.pipeline.training.sampler import Draw

Input = TypeVar("Input")


@dataclass(frozen=True)
class Batch:
    """The images and captions of a `Draw`, of each group the part of this process; other fields cover all anchors."""

    images: Images
    captions: Captions
    image_rows: Int[Tensor, " batch"]
    """A number per anchor image, equal for copies of one photograph."""
    corresponding: Bool[Tensor, " batch"] | None = None
    """True where the pairs derived from the offline negatives are true pairs."""
    match_probability: Float[Tensor, "2 batch"] | None = None
    """Probability that the offline negatives match their anchors, for soft margins."""
    excluded: Bool[Tensor, "2 batch columns"] | None = None
    """True where a drawn caption does not count as a negative of an image (row 0), or an image as one of a caption (row
    1); only where several are drawn for each anchor."""
    guided: Bool[Tensor, "batch batch"] | None = None
    """Pairs that are not in-batch negatives: the guide excludes them, or a screen makes them positives."""
    teacher_scores: Float[Tensor, "teachers batch batch"] | None = None
    """Teachers' scores of all pairs of the anchors."""
    listed_scores: Float[Tensor, "2 batch candidates"] | None = None
    """The table's scores of the own pair and the negatives in the last groups: of each image, then of each caption."""

    @property
    def size(self) -> int:
        return len(self.image_rows)

    def to(self, device: torch.device) -> Batch:
        return self._each(lambda part: sent(part, device) if isinstance(part, Tensor) else part.to(device))

    def pin_memory(self) -> Batch:
        return self._each(lambda part: part.pin_memory())

    def _each(self, change: Callable[[Any], Any]) -> Batch:
        return replace(self, **{name: change(part) for name, part in vars(self).items() if part is not None})


def matched(pairs: PairData, captions: Int32[np.ndarray, " batch"]) -> Draw:
    """Pair these captions with their images, and draw nothing."""
    return Draw(np.stack([pairs.split.image_of[captions], captions], axis=1)[None])


def read_batch(pairs: PairData, draw: Draw, part: slice = slice(None)) -> Batch:
    """Read the images and captions of this part of each group."""
    images, captions = draw.groups[:, part].reshape(-1, 2).T
    anchors, identity = draw.groups[0, :, 0], pairs.split.identity
    names = "corresponding", "match_probability", "excluded", "listed_scores"
    return Batch(
        replace(pairs.images(images), groups=len(draw.groups)),
        pairs.captions(captions),
        torch.from_numpy((anchors if identity is None else identity[anchors]).astype(np.int64)),
        **{name: torch.from_numpy(array) for name in names if (array := getattr(draw, name)) is not None},
    )


def read_items(pairs: PairData, rows: Int[np.ndarray, "batch 2"], part: slice = slice(None)) -> tuple[Images, Captions]:
    """Read this part of the pairs' images, and all of their captions."""
    return pairs.images(rows[part, 0]), pairs.captions(rows[:, 1])


def score_all(embeddings: EmbeddingStore, pairs: Int[np.ndarray, "batch 2"]) -> Float[Tensor, "batch batch"]:
    """Score every image of these pairs with every caption, by a teacher's embeddings of the training split."""
    return torch.from_numpy(embeddings.images[pairs[:, 0]] @ embeddings.captions[pairs[:, 1]].T)


@torch.no_grad()
@products_in("float32")
def score_batch(model: MatchingModel, images: Images, captions: Captions) -> Float[Tensor, "images captions"]:
    """Score every image with every caption by a teacher's model, in eval mode, in blocks."""
    parts = [captions[start:stop] for start, stop in blocks(len(captions), SCORED_CAPTIONS)]
    encoded = concatenate([model.encode_captions(part) for part in parts])
    rows = (model.encode_images(images[start:stop]) for start, stop in blocks(len(images), SCORED_IMAGES))
    return torch.cat([model.similarity(part, encoded) for part in rows]).float()


def read_ahead(make: Callable[[int], Input], steps: Iterable[int], workers: int) -> Generator[Input]:
    """Yield `make(step)` for each step, in order, computed by threads ahead of time; without `workers`, on demand.

    At most `workers` + 1 results wait in memory; an error is raised at its step. Closing waits for steps in progress.

    >>> list(read_ahead(lambda step: step**2, range(4), workers=2))
    [0, 1, 4, 9]
    """
    if not workers:
        yield from map(make, steps)
        return
    # Threads, since numpy releases the GIL while it copies. Processes of torch's DataLoader took as long or longer
    # (benchmarks/reading.py): their batches pass through shared memory, and a fork beside threads may hang.
    pool, waiting = ThreadPoolExecutor(workers, "batches"), deque[Future[Input]]()
    try:
        for step in steps:
            waiting.append(pool.submit(make, step))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
