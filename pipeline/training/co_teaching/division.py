"""Co-divide: probabilities that pairs are right, from their losses, and the batches of steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Int64

from aoq.pipeline.data.batches import steps_per_epoch
from aoq.pipeline.extras import import_extra

Rows = Int64[np.ndarray, " _"]


def scikit_learn() -> list[Any]:
    """Import scikit-learn late: it takes as long as all of torch, and only co-teaching needs it."""
    return [
        import_extra(name, "ncr", "co-teaching") for name in ("sklearn.exceptions", "sklearn.mixture", "threadpoolctl")
    ]


def clean_probabilities(losses: Float[np.ndarray, " pairs"], *, seed: int) -> Float32[np.ndarray, " pairs"]:
    """Posterior of the lower of two Gaussians fitted to the losses, scaled to [0, 1]; 1 if all are equal.

    Fitted in one thread: sums over several would differ in bits from run to run.
    """
    spread = losses.max() - losses.min()
    if spread == 0:
        return np.ones(len(losses), dtype=np.float32)
    scaled = ((losses - losses.min()) / spread).astype(np.float64)[:, None]
    exceptions, mixtures, threads = scikit_learn()
    mixture = mixtures.GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed)
    with threads.threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)  # ten iterations are NCR's
        posterior = mixture.fit(scaled).predict_proba(scaled)
    return posterior[:, mixture.means_.argmin()].astype(np.float32)


def selected_clean(probabilities: Float[np.ndarray, " pairs"], *, threshold: float) -> Bool[np.ndarray, " pairs"]:
    """Select pairs above the threshold; if that is all of them, the least probable n // 100 + 1 are flagged as noisy.

    >>> selected_clean(np.array([0.9, 0.2, 0.6]), threshold=0.5)
    array([ True, False,  True])
    >>> selected_clean(np.array([0.9, 0.8, 0.6]), threshold=0.5)
    array([ True,  True, False])
    """
    clean = probabilities > threshold
    if clean.all():
        clean[np.argsort(probabilities, kind="stable")[: len(clean) // 100 + 1]] = False
    return clean


@dataclass(frozen=True)
class Batches:
    """Pairs in batches: each pair once, then all anew in another order, and so on.

    A batch of a single pair, which has no negative, is left out. Batches are a function of `key`.
    """

    rows: Rows
    batch_size: int
    key: tuple[int, ...]

    @property
    def steps(self) -> int:
        """Number of batches until the pairs are used up."""
        return steps_per_epoch(len(self.rows), self.batch_size)

    def __getitem__(self, step: int) -> Rows:
        turn, number = divmod(step, self.steps)
        order = _order(len(self.rows), *self.key, turn)
        return self.rows[order[number * self.batch_size :][: self.batch_size]]


@lru_cache(maxsize=2)
def _order(count: int, *key: int) -> Rows:
    return np.random.default_rng(key).permutation(count)


def even_batches(pairs: int, batch_size: int, key: tuple[int, ...]) -> Iterator[Rows]:
    """Batch all pairs in random order, with sizes differing by one at most: a pair's loss depends on its batch."""
    yield from np.array_split(_order(pairs, *key), -(-pairs // batch_size))
