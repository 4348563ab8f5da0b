"""Backend streamed: blocks of images with all captions streaming by, for vectors that are read by range.

Nothing in a unit's tables depends on the arithmetic, the device or the size of the unit: limits are exact scores, and
all that reaches them is scored exactly while its vectors are there. So machines of any kinds work on one search, and
units are of any size.
"""

from __future__ import annotations

from collections.abc import Mapping

from aoq.pipeline.search.onepass import sample_and_rank
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.rows import RowStep
from aoq.pipeline.search.streamed.limits import LIMITS, SAMPLE, limits, sample
from aoq.pipeline.search.streamed.merging import merge
from aoq.pipeline.search.streamed.strips import KEPT, OWN, strip
from aoq.pipeline.search.units import Backend, Steps, list_bytes

MOST = 8192
"""Images of a block, and captions of a merge times sixteen, at most."""
KEPT_BYTES = 12


def streamed_steps(problem: Problem) -> Steps[Problem]:
    _ = problem.longest  # refuses norms that do not fit
    images, captions, dimensions = len(problem.images), *problem.captions.shape
    both = "t2i" in problem.directions
    kinds = ["i2t"] * ("i2t" in problem.directions) + [OWN, KEPT] * both
    share = problem.memory // 8
    kept = 2 * KEPT_BYTES * _kept_pairs(problem) / images
    sampled = 4 * dimensions * _sampled(problem) / images
    return [
        RowStep((SAMPLE,), images * both, _at_most(images, share, sampled), sample),
        RowStep((LIMITS,), captions * both, 16 * MOST, limits),
        RowStep(tuple(kinds), images, _at_most(MOST, share, 8 * (problem.h_captions + dimensions) + kept), strip),
        RowStep(("t2i",), captions * both, _at_most(16 * MOST, share, 12 * problem.h_images + 16), merge),
    ]


def _at_most(count: int, memory: int, each: int | float) -> int:
    """Number of rows of `each` bytes that fit into the memory, up to `count`."""
    return max(1, count if each * count <= memory else int(memory / each))


def _costs(problem: Problem) -> Mapping[str, float]:
    images, captions = len(problem.images), len(problem.captions)
    each, both = 2.0 * problem.images.shape[1], "t2i" in problem.directions
    return {
        "sample of images": each * images * both,
        "limits from the sample": each * _sampled(problem) * captions * both,
        "blocks of images": each * images * captions,
        "lists of captions": each * _kept_pairs(problem),
    }


def _sampled(problem: Problem) -> int:
    size = problem.size("t2i")
    return sample_and_rank(size.candidates, size.wanted)[0] if size.h else 0


def _kept_pairs(problem: Problem) -> float:
    size = problem.size("t2i")
    if not size.h:
        return 0.0
    sampled, rank = sample_and_rank(size.candidates, size.wanted)
    return size.anchors * size.candidates * rank / sampled


def _work_bytes(problem: Problem) -> float:
    vectors = 4 * problem.images.shape[1] * _sampled(problem)
    return list_bytes(problem) + KEPT_BYTES * _kept_pairs(problem) + vectors


STREAMED: Backend = Backend(
    "streamed",
    "exact, blocks of images with all captions streaming by; for clusters, and vectors that are read by range",
    streamed_steps,
    costs=_costs,
    work_bytes=_work_bytes,
)
