"""Which pairs a step of co-teaching sees: functions of the seed, the epoch, the network and the step alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int64

from aoq.pipeline.data.batches import steps_per_epoch

Rows = Int64[np.ndarray, " _"]
CLEAN, NOISY = 0, 1


@dataclass(frozen=True)
class Epoch:
    """One network's epoch: every pair that is held clean once, and beside each batch one of the others.

    These begin anew, in another order, whenever they are used up. A batch of a single pair, which has no negative, is
    left out.
    """

    clean: Rows
    noisy: Rows
    batch_size: int
    key: tuple[int, int, int]
    """Seed, epoch, network."""

    @classmethod
    def of(cls, is_clean: Bool[np.ndarray, " pairs"], batch_size: int, key: tuple[int, int, int]) -> Epoch:
        return cls(np.flatnonzero(is_clean), np.flatnonzero(~is_clean), batch_size, key)

    @property
    def steps(self) -> int:
        return steps_per_epoch(len(self.clean), self.batch_size)

    def clean_batch(self, step: int) -> Rows:
        return self._batch(self.clean, CLEAN, 0, step)

    def noisy_batch(self, step: int) -> Rows | None:
        """None where there are no two."""
        batches = steps_per_epoch(len(self.noisy), self.batch_size)
        return self._batch(self.noisy, NOISY, *divmod(step, batches)) if batches else None

    def _batch(self, rows: Rows, kind: int, turn: int, number: int) -> Rows:
        order = _order(len(rows), *self.key, kind, turn)
        return rows[order[number * self.batch_size :][: self.batch_size]]


@lru_cache(maxsize=2)
def _order(count: int, *key: int) -> Rows:
    return np.random.default_rng(key).permutation(count)


def even_batches(pairs: int, batch_size: int, key: tuple[int, ...]) -> Iterator[Rows]:
    """All pairs in random order, in batches of the same size or one less: what a pair loses depends on its batch."""
    yield from np.array_split(_order(pairs, *key), -(-pairs // batch_size))
