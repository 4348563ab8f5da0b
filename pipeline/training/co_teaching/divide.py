"""Co-divide: which pairs are probably right, by what they lose."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float32

from aoq.pipeline.extras import import_extra


def scikit_learn() -> list[Any]:
    """What fits the mixture; imported late, because it takes as long as all of torch, and only co-teaching needs it."""
    return [
        import_extra(name, "ncr", "co-teaching") for name in ("sklearn.exceptions", "sklearn.mixture", "threadpoolctl")
    ]


def clean_probabilities(losses: Float[np.ndarray, " pairs"], *, seed: int) -> Float32[np.ndarray, " pairs"]:
    """The posterior of the lower of two Gaussians that are fitted to the losses, scaled to [0, 1]; 1 if all are equal.

    Fitted in one thread: sums of several would end in other bits from run to run.
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


def held_clean(probabilities: Float[np.ndarray, " pairs"], *, threshold: float) -> Bool[np.ndarray, " pairs"]:
    """Those above the threshold; if that is all of them, the least probable n // 100 + 1 are not.

    >>> held_clean(np.array([0.9, 0.2, 0.6]), threshold=0.5)
    array([ True, False,  True])
    >>> held_clean(np.array([0.9, 0.8, 0.6]), threshold=0.5)
    array([ True,  True, False])
    """
    clean = probabilities > threshold
    if clean.all():
        clean[np.argsort(probabilities, kind="stable")[: len(clean) // 100 + 1]] = False
    return clean
