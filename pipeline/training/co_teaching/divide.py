"""Co-divide: which pairs are probably right, by what they lose."""

from __future__ import annotations

import warnings

import numpy as np
from jaxtyping import Bool, Float, Float32
from threadpoolctl import threadpool_limits


def clean_probabilities(losses: Float[np.ndarray, " pairs"], *, seed: int) -> Float32[np.ndarray, " pairs"]:
    """The posterior of the lower of two Gaussians that are fitted to the losses, scaled to [0, 1]; 1 if all are equal.

    Fitted in one thread: sums of several would end in other bits from run to run.
    """
    from sklearn.exceptions import ConvergenceWarning  # not above: it takes as long to import as all of torch
    from sklearn.mixture import GaussianMixture

    spread = losses.max() - losses.min()
    if spread == 0:
        return np.ones(len(losses), dtype=np.float32)
    scaled = ((losses - losses.min()) / spread).astype(np.float64)[:, None]
    mixture = GaussianMixture(2, max_iter=10, tol=1e-2, reg_covar=5e-4, random_state=seed)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # ten iterations are NCR's
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
