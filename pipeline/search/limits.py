"""Limits: for every anchor a score that its h best candidates, and few others, should reach; estimated from a sample.

A limit proves nothing: it decides how many pairs are scored exactly. An anchor whose limit was too high is searched
again.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from aoq.pipeline.search.device import (
    Arithmetic,
    Operand,
    Room,
    arithmetics,
    errors_of,
    floors_of,
    multiply,
    to_device,
)
from aoq.pipeline.search.problem import ProblemSize, Side, blocks

SCORING = 14.0
"""Cost of an exact score, in products."""
FEWEST_EXPECTED = 2.0
FIRST_DEVIATIONS = 2.8
"""Standard deviations by which a limit's rank exceeds the expected one; about one limit in 100 is too high."""
_PROBED = 256
"""Anchors on which the arithmetic is chosen."""


def sample_and_rank(size: ProblemSize, deviations: float = FIRST_DEVIATIONS) -> tuple[int, int]:
    """Return the number of candidates to sample, and the rank in the sample of the score that becomes the limit.

    A sample of e N / w candidates contains on average e of an anchor's w best among N. The rank is d standard
    deviations beyond e, so about w (1 + d / sqrt(e)) candidates reach the limit. Sampling and the exact scores, each of
    which costs c products, cost least in total if e = (c d w^2 / 2 N)^(2/3).

    >>> sample_and_rank(ProblemSize(anchors=29_000, candidates=145_000, h=300, wanted=305))
    (2571, 12)
    """
    count, wanted = size.candidates, max(1, size.wanted)
    expected = max(FEWEST_EXPECTED, (SCORING * FIRST_DEVIATIONS * wanted**2 / (2 * count)) ** (2 / 3))
    sampled = min(count, math.ceil(expected * count / wanted))
    expected = sampled * wanted / count
    deviation = math.sqrt(expected * (1 - sampled / count))
    return sampled, min(sampled, math.ceil(expected + deviations * deviation))


def kept_share(size: ProblemSize) -> float:
    """Return the fraction of a direction's pairs that is expected to reach the limits."""
    sampled, rank = sample_and_rank(size)
    return rank / sampled


def sampled_limits(
    side: Side, how: Arithmetic, device: torch.device, room: Room, deviations: float = FIRST_DEVIATIONS
) -> Float32[Tensor, " anchors"]:
    """Take, for each anchor, the approximate product of the chosen rank in the sample."""
    sample, rank = _sample(side, how, device, deviations)
    limits = []
    for start, stop in blocks(len(side.anchors), max(1, room.rows * room.columns // len(sample))):
        near = multiply(how.prepare(to_device(side.anchors[start:stop], device)), sample.near)
        limits.append(near.topk(rank, sorted=False).values.amin(1).float())
    return torch.cat(limits)


def choose_arithmetic(side: Side, device: torch.device, room: Room) -> Arithmetic:
    """Choose the arithmetic with the least total cost of products and exact scores.

    If the vectors have collapsed, the error of a coarse product exceeds the differences between scores, so most pairs
    would need an exact score.
    """
    rows = np.linspace(0, len(side.anchors) - 1, min(_PROBED, len(side.anchors))).astype(np.int64)
    able, costs = arithmetics(device), []
    for how in able:
        sample, rank = _sample(side, how, device, FIRST_DEVIATIONS)
        anchors = Operand.of(side.anchors[rows], side.anchor_norms[rows], how, device)
        near = multiply(anchors.near, sample.near)
        limits = near.topk(rank, sorted=False).values.amin(1).float()
        above = torch.nextafter(limits, torch.full_like(limits, torch.inf))  # many ties raise limits during the scan
        left_open = near >= floors_of(above, errors_of(anchors, sample, how), how)[:, None]
        costs.append(how.cost + room.scoring * float(left_open.float().mean()))
    return able[int(np.argmin(costs))]


def _sample(side: Side, how: Arithmetic, device: torch.device, deviations: float) -> tuple[Operand, int]:
    sampled, rank = sample_and_rank(side.size, deviations)
    rows: Int64[np.ndarray, " sampled"] = np.arange(len(side.candidates))
    if sampled < len(rows):
        rows = np.sort(np.random.default_rng(0).choice(len(rows), sampled, replace=False))
    return Operand.of(side.candidates[rows], side.candidate_norms[rows], how, device), rank
