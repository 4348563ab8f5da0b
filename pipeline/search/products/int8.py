"""Dot products of vectors rounded to 8 bits: they prove for most pairs that neither side lists the other.

A vector is scale * integers + left, with integers from -127 to 127. For two of them

    <a, c> <= scale_a scale_c <integers_a, integers_c> + |left_a| |c| + (|a| + |left_a|) |left_c|.

Pairs whose bound reaches the limit of one side, about one in thirty, may count. Integers are added up without any
rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any, no_type_check

import numpy as np
import torch
from jaxtyping import Float32
from numba import njit

from aoq.pipeline.search.products.product import Limits, Scan
from aoq.pipeline.search.scores import read_only
from aoq.pipeline.search.threads import in_parallel
from aoq.pipeline.search.tiles import STRIP

MOST = 127
ROUNDING = 2.0**-18  # of two norms' product: more than float32 loses in the bound's own arithmetic and an exact score's
SMALLEST = 2.0**-60  # vectors of smaller entries are rounded to 0


@dataclass(frozen=True)
class Rounded:
    """Integers of vectors; `longest` is the largest |x| + |left|."""

    integers: torch.Tensor
    scales: Float32[np.ndarray, " items"]
    left: Float32[np.ndarray, " items"]
    longest: float


@dataclass
class Int8Product:
    precision: str = "int8"
    _result: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0), repr=False)

    def prepare(self, vectors: Float32[np.ndarray, "items D"]) -> Rounded:
        vectors = read_only(np.ascontiguousarray(vectors))
        integers = np.empty(vectors.shape, np.int8)
        scales, left, norms = (np.empty(len(vectors), np.float32) for _ in range(3))
        in_parallel(_round, len(vectors), vectors, vectors.view(np.int32), integers, scales, left, norms)
        longest = float((norms + left).max(initial=0))
        return Rounded(torch.from_numpy(integers), scales, left, longest)

    def __call__(self, one: Rounded, other: Rounded) -> Float32[np.ndarray, "items others"]:
        products = self._products(one, other)
        scores = np.empty(products.shape, np.float32)
        in_parallel(_scale, len(scores), products, one.scales, other.scales, scores)
        return scores

    def scan(self, images: Rounded, captions: Rounded, limits: Limits) -> Scan:
        rounding = np.float32(ROUNDING * images.longest * captions.longest)
        image_slack = images.left * np.float32(captions.longest) + rounding
        caption_slack = captions.left * np.float32(images.longest)
        sides = (images.scales, image_slack), (captions.scales, caption_slack)
        return _scan, (self._products(images, captions), *sides, limits)

    def _products(self, one: Rounded, other: Rounded) -> np.ndarray:
        shape = len(one.scales), len(other.scales)
        if self._result.shape != shape:
            self._result = torch.empty(shape, dtype=torch.int32)
        return torch._int_mm(one.integers, other.integers.T, out=self._result).numpy()


@cache
def int8_works(dimensions: int = 256) -> bool:
    """Return whether sums of products of 8-bit integers come out right here.

    Older units lose what exceeds 16 bits on the way, and torch 2.13 goes wrong on vectors of a single number.
    """
    random = torch.Generator().manual_seed(0)
    vectors = torch.randint(-MOST, MOST + 1, (64, dimensions), dtype=torch.int8, generator=random)
    vectors[:16], vectors[16:32] = MOST, -MOST
    try:
        right = torch.equal(torch._int_mm(vectors, vectors.T), vectors.int() @ vectors.T.int())
    except RuntimeError:
        return False
    return right and dimensions * MOST**2 < 2**31


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def _round(start: int, stop: int, vectors: Any, bits: Any, integers: Any, scales: Any, left: Any, norms: Any) -> None:
    """Round to integers; the norms are raised by more than float32 can lose in adding them up."""
    grown, more = 1 + (vectors.shape[1] + 2) * 2.0**-24, np.sqrt(vectors.shape[1]) * SMALLEST
    for row in range(start, stop):
        vector, whole = vectors[row], integers[row]
        most = np.int32(0)  # floats without their sign sort as their bits do
        for entry in bits[row]:
            most = max(most, entry & np.int32(0x7FFFFFFF))
        largest = np.array([most], np.int32).view(np.float32)[0]
        small = largest < SMALLEST
        scale = np.float32(0) if small else largest / np.float32(MOST)
        inverse = np.float32(0) if small else np.float32(MOST) / largest
        square = rest = np.float32(0)
        for k in range(len(vector)):
            whole[k] = np.int32(vector[k] * inverse + np.float32(128.5)) - 128
            difference = vector[k] - np.float32(whole[k]) * scale
            rest += difference * difference
            square += vector[k] * vector[k]
        scales[row] = scale
        norms[row] = np.sqrt(square) * grown + more
        left[row] = np.sqrt(rest) * grown + norms[row] * 2.0**-22 + more


@njit(nogil=True, cache=True)
@no_type_check
def _scale(start: int, stop: int, products: Any, scales: Any, other_scales: Any, scores: Any) -> None:
    for row in range(start, stop):
        for column in range(len(other_scales)):
            scores[row, column] = np.float32(products[row, column]) * (other_scales[column] * scales[row])


@njit(nogil=True, cache=True)
@no_type_check
def _scan(start: int, stop: int, tile: Any, rows: Any, columns: Any, limits: Any, found: Any, ends: Any) -> None:
    """Write the pairs of these rows whose bound reaches a limit (`Scan`)."""
    image_scales, image_slack = rows
    caption_scales, caption_slack = columns
    image_limits, caption_limits = limits
    images, captions = found
    end = start * len(caption_limits)
    wanted = np.empty(STRIP, np.uint8)
    eights = wanted.view(np.uint64)
    for first in range(0, len(caption_limits), STRIP):
        width = min(STRIP, len(caption_limits) - first)
        wanted[width:] = 0
        part = slice(first, first + width)
        scales, slack, limits_here = caption_scales[part], caption_slack[part], caption_limits[part]
        for row in range(start, stop):
            sums, scale, more, limit = tile[row, part], image_scales[row], image_slack[row], image_limits[row]
            for n in range(width):
                bound = np.float32(sums[n]) * (scales[n] * scale) + slack[n] + more
                wanted[n] = bound >= min(limit, limits_here[n])
            for eight in range(len(eights)):
                if eights[eight] == 0:
                    continue
                for n in range(8 * eight, 8 * eight + 8):
                    if wanted[n]:
                        images[end], captions[end] = row, first + n
                        end += 1
    ends[start] = end
