"""Training batches: the captions of each step, and their tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int, Int32

from aoq.models.base import Captions, Images
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.pixels import PhotographPixels
from aoq.pipeline.data.tokens import TokenisedCaptions

DRAWING = 2
"""Separates the random numbers of steps from those of orders and of augmentation."""


@dataclass(frozen=True)
class PairData:
    """A split with its captions tokenised; `max_regions` limits the regions of each image (`Split.count_regions`).

    With `pixels`, its images are photographs instead of region features.
    """

    split: Split
    tokens: TokenisedCaptions
    max_regions: int | None = None
    pixels: PhotographPixels | None = None

    @property
    def regions(self) -> int:
        return self.split.count_regions(self.max_regions)

    def augmented(self, ways: tuple[str, ...] | None, seed: int, epoch: int) -> PairData:
        """Return the split as one epoch of a training sees it."""
        if ways is None or self.pixels is None:
            return self
        return replace(self, pixels=self.pixels.augmented(ways, seed, epoch))

    def images(self, rows: Int[np.ndarray, " batch"]) -> Images:
        """Read images as they are stored; `Images.to` makes float32 of float16."""
        if self.pixels is not None:
            return Images(self.pixels.read(rows))

        def read(array: np.ndarray, dtype: type | None = None) -> torch.Tensor:
            return torch.from_numpy(np.asarray(array[rows, : self.regions], dtype=dtype))

        split = self.split
        return Images(
            read(split.features),
            None if split.mask is None else read(split.mask),
            None if split.boxes is None else read(split.boxes, np.float32),
        )

    def captions(self, rows: Int[np.ndarray, " batch"]) -> Captions:
        words, lengths = self.tokens.gather(rows)
        return Captions(torch.from_numpy(words), torch.from_numpy(lengths))


def steps_per_epoch(captions: int, batch_size: int) -> int:
    """Count the steps that visit every caption; a last batch of a single pair, which has no negative, is left out."""
    full, rest = divmod(captions, batch_size)
    return full + (rest > 1)


@lru_cache(maxsize=4)  # each step needs it
def epoch_order(captions: int, *, seed: int, epoch: int) -> Int32[np.ndarray, " captions"]:
    """Return the order of the captions in an epoch, a function of (seed, epoch) alone, so that it can be resumed."""
    order = np.random.default_rng([seed, epoch]).permutation(captions).astype(np.int32)
    order.flags.writeable = False
    return order


def step_rng(*, seed: int, epoch: int, step: int) -> np.random.Generator:
    """Make the random generator of a step, a function of (seed, epoch, step) alone."""
    return np.random.default_rng([seed, epoch, step, DRAWING])  # the last of a seed may not be 0, which numpy ignores
