"""Hubness: candidates near every query, corrected by an inverted softmax over a bank of queries, on both sides.

    s'(i, c) = s(i, c) - b(c) - b(i)        b(c) = tau log( mean over images j of the bank of e^(s(j, c) / tau) )

b(i) is likewise over captions. An image ranks captions as the inverted softmax does (Smith et al., ICLR 2017; QB-Norm,
Bogolin et al., CVPR 2022), since b(i) is equal for all of them; and a caption images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from aoq.pipeline.embedding import reserved_file
from aoq.pipeline.evaluation.retrieval import Similarity
from aoq.pipeline.reading import host_array
from aoq.pipeline.search.problem import Problem, blocks

BANK = 5000
ROWS = 256
"""Rows whose scores are in memory at a time."""


def without_hubs(
    images: ArrayLike, captions: ArrayLike, *, temperature: float = 0.05, bank: int = BANK
) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors (I, D + 2) and (C, D + 2), in float32, whose dot products are the corrected scores.

    `images` are (I, D) and `captions` (C, D); the scores are their dot products, so divide them by their norms for
    cosines. Each bank has at most `bank` rows of its side, evenly spaced. Mine the result with `metric="dot"`, and
    screen with `absolute_margin`, not `relative_margin`, since a corrected score may be negative. Raises ValueError if
    shapes do not fit or a value is not finite.

    >>> images, captions = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0], [0.7, 0.7]])
    >>> one, other = without_hubs(images, captions, temperature=0.1)
    >>> (one @ other.T).round(2)  # the last caption, near both images, was at 0.7
    array([[-0.83, -1.83, -0.9 ],
           [-1.83, -0.83, -0.9 ]], dtype=float32)
    """
    sides = [host_array(images, "images"), host_array(captions, "captions")]
    shapes = [side.shape for side in sides]
    if any(side.ndim != 2 or not side.size for side in sides) or shapes[0][1] != shapes[1][1]:
        raise ValueError(f"images and captions have shapes {shapes[0]} and {shapes[1]}; give rows of one length.")
    if not all(np.isfinite(side).all() for side in sides):
        raise ValueError("a vector is not finite; repair it or leave it out.")
    files = [np.empty((len(side), side.shape[1] + 2), np.float32) for side in sides]
    _correct(sides, temperature, bank, files)
    return files[0], files[1]


def correct_problem(problem: Problem, temperature: float, folder: Path) -> Problem:
    """Return the problem with corrected scores; its vectors are written to the new folder."""
    if problem.one_set:
        raise ValueError("hubness is corrected between two sides, but these vectors are one set; leave it out.")
    folder.mkdir(parents=True, exist_ok=True)
    sides = problem.images, problem.captions
    names = folder / "images.npy", folder / "captions.npy"
    files = [reserved_file(name, (len(side), side.shape[1] + 2)) for name, side in zip(names, sides, strict=True)]
    _correct(sides, temperature, BANK, files)
    for file in files:
        file.flush()
    return replace(problem, images=files[0], captions=files[1], known_norms=None)


def _correct(sides: Sequence[np.ndarray], temperature: float, bank: int, into: Sequence[np.ndarray]) -> None:
    """Write the vectors of both sides, each with its bias and a one, which meets the other side's bias."""
    if not 0 < temperature < np.inf or bank < 1:
        raise ValueError(f"temperature is {temperature} and bank is {bank}; both must be positive and finite.")
    for place, (side, other, file) in enumerate(zip(sides, sides[::-1], into, strict=True)):
        asked = other[np.linspace(0, len(other) - 1, min(bank, len(other))).astype(int)].astype(np.float64)
        for start, stop in blocks(len(side), ROWS):
            rows = side[start:stop].astype(np.float64)
            columns = [-_soft_maximum(rows @ asked.T, temperature), np.ones(len(rows))]
            file[start:stop] = np.column_stack([rows, *(columns if place == 0 else columns[::-1])])


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


def _soft_maximum(scores: Float64[np.ndarray, "rows bank"], temperature: float) -> Float64[np.ndarray, " rows"]:
    most = scores.max(1)
    return most + temperature * np.log(np.exp((scores - most[:, None]) / temperature).mean(1))
