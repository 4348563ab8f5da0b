"""Hubness: candidates near every query, corrected by an inverted softmax over a bank of queries, on both sides.

    s'(i, c) = s(i, c) - b(c) - b(i)        b(c) = tau log( mean over images j of the bank of e^(s(j, c) / tau) )

b(i) is the same over captions. An image's ranking of captions is that of the inverted softmax (Smith et al., ICLR 2017;
QB-Norm, Bogolin et al., CVPR 2022), since b(i) is equal for all of them; a caption's ranking of images likewise.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Float64

from aoq.pipeline.evaluation.retrieval import Similarity
from aoq.pipeline.reading import host_array
from aoq.pipeline.search.problem import blocks

BANK = 5000
ROWS = 256
"""Rows whose scores are in memory at a time."""


def without_hubs(
    images: Float[np.ndarray, "images D"],
    captions: Float[np.ndarray, "captions D"],
    *,
    temperature: float = 0.05,
    bank: int = BANK,
) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors of two more dimensions, in float32, whose dot products are the corrected scores.

    The scores are dot products of the given vectors, so divide these by their norms for cosines. Each bank has at most
    `bank` rows of its side, evenly spaced. Mine the result with `metric="dot"`; in place of a margin below a positive
    take an absolute one, since a corrected score may be negative. Raises ValueError if a value is not finite.

    >>> images, captions = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0], [0.7, 0.7]])
    >>> one, other = without_hubs(images, captions, temperature=0.1)
    >>> (one @ other.T).round(2)  # the last caption was near both images
    array([[ 0.05, -0.95, -0.58],
           [-0.95,  0.05, -0.58]], dtype=float32)
    """
    sides = host_array(images, "images").astype(np.float64), host_array(captions, "captions").astype(np.float64)
    if temperature <= 0 or bank < 1 or not all(np.isfinite(side).all() for side in sides):
        raise ValueError(f"temperature is {temperature} and bank {bank}; give positive ones, and finite vectors.")
    banks = [side[np.linspace(0, len(side) - 1, min(bank, len(side))).astype(int)] for side in sides]
    biases = [_biases(side, other, temperature) for side, other in zip(sides, banks[::-1], strict=True)]
    columns = [[-biases[0], np.ones(len(sides[0]))], [np.ones(len(sides[1])), -biases[1]]]
    one, other = (np.column_stack([side, *more]) for side, more in zip(sides, columns, strict=True))
    return one.astype(np.float32), other.astype(np.float32)


def corrected(similarity: Similarity, temperature: float, into: Similarity | None = None) -> Similarity:
    """Correct a matrix of similarities, whose own rows and columns are the banks."""
    total, rows = np.zeros(similarity.shape[1]), np.empty(len(similarity))
    most = np.max([similarity[start:stop].max(0) for start, stop in blocks(len(similarity), ROWS)], axis=0)
    for start, stop in blocks(len(similarity), ROWS):
        block = similarity[start:stop].astype(np.float64)
        rows[start:stop] = _soft_maximum(block, temperature)
        total += np.exp((block - most) / temperature).sum(0)
    columns = most + temperature * np.log(total / len(similarity))
    into = np.empty_like(similarity) if into is None else into
    for start, stop in blocks(len(similarity), ROWS):
        into[start:stop] = similarity[start:stop] - columns - rows[start:stop, None]
    return into


def _biases(
    side: Float64[np.ndarray, "items D"], bank: Float64[np.ndarray, "bank D"], temperature: float
) -> Float64[np.ndarray, " items"]:
    parts = [_soft_maximum(side[start:stop] @ bank.T, temperature) for start, stop in blocks(len(side), ROWS)]
    return np.concatenate(parts)


def _soft_maximum(scores: Float64[np.ndarray, "rows bank"], temperature: float) -> Float64[np.ndarray, " rows"]:
    most = scores.max(1)
    return most + temperature * np.log(np.exp((scores - most[:, None]) / temperature).mean(1))
