"""Near dot products of blocks: fast, with a known error bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, no_type_check

import numpy as np
import torch
from jaxtyping import Float32, Int16
from numba import njit

from aoq.pipeline.search.brute_force import tensor_of
from aoq.pipeline.search.problem import BLOCK, Problem, blocks
from aoq.pipeline.search.products.int8 import Int8Product, int8_works
from aoq.pipeline.search.products.int16 import int16_product, int16_works
from aoq.pipeline.search.products.product import LAST_BIT, Limits, Product, Scan, lowered
from aoq.pipeline.search.scores import read_only
from aoq.pipeline.search.threads import in_parallel
from aoq.pipeline.search.tiles import scan_scores

ROUNDED = 2.0**-8  # of a number: the most that rounding to bfloat16, with 8 significant bits, can take away
SMALLEST = 2.0**-126  # anything smaller may count as nothing in bfloat16 units

Precision = Literal["float32", "bfloat16", "int16", "int8"]


def near_product(problem: Problem, precision: Precision | None = None) -> Product:
    """Make the product of a precision; without one, of that which usually is the fastest on this processor."""
    precision = precision or fastest_precision()
    if precision == "int8" and int8_works(problem.images.shape[1]):
        return Int8Product()
    if precision == "int16" and int16_works():
        return int16_product(problem)
    if precision == "bfloat16":
        return _bfloat16_product(problem)
    return FloatProduct("float32", problem["i2t"].rounding_error + LAST_BIT * problem.longest)


def able_precisions(dimensions: int) -> list[Precision]:
    """Precisions that this processor has units for."""
    able = _capabilities()
    bfloat16 = able.get("amx_bf16") or able.get("avx512_bf16")
    int8 = (able.get("avx512_vnni") or able.get("avx_vnni")) and int8_works(dimensions)
    named: dict[Precision, object] = {"bfloat16": bfloat16, "int8": int8, "int16": int16_works(), "float32": True}
    return [precision for precision, works in named.items() if works]


def fastest_precision() -> Precision:
    """Precision that usually is the fastest of those; `measuring.py` finds out."""
    return able_precisions(256)[0]


def _capabilities() -> dict[str, bool]:
    return dict(torch.cpu.get_capabilities()) if hasattr(torch.cpu, "get_capabilities") else {}


@dataclass
class FloatProduct:
    precision: str
    error: float
    """Error bound of a product that is not yet rounded to bfloat16, and of an exact score's last bit."""
    _result: torch.Tensor = field(default_factory=lambda: torch.empty(0, 0), repr=False)

    def prepare(self, vectors: Float32[np.ndarray, "items D"]) -> torch.Tensor:
        return _to_bfloat16(vectors) if self.precision == "bfloat16" else tensor_of(vectors)

    def __call__(self, one: torch.Tensor, other: torch.Tensor) -> Float32[np.ndarray, "items others"]:
        return self._multiplied(one, other).float().numpy()

    def _multiplied(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        shape = len(one), len(other)
        if self._result.shape != shape:
            self._result = torch.empty(shape, dtype=one.dtype)
        return torch.mm(one, other.T, out=self._result)

    def floors(self, limits: Float32[np.ndarray, " anchors"]) -> Float32[np.ndarray, " anchors"]:
        rounded = ROUNDED if self.precision == "bfloat16" else 0.0
        return lowered(limits, lambda limit: limit - self.error - rounded * np.abs(limit - self.error))

    def scan(self, images: torch.Tensor, captions: torch.Tensor, limits: Limits) -> Scan:
        tile, floors = self._multiplied(images, captions), (self.floors(limits[0]), self.floors(limits[1]))
        if self.precision == "bfloat16" and min(floor.min(initial=np.inf) for floor in floors) > 0:
            # Numbers above 0 sort as their bits do, and all others have lower bits: half the memory to look through.
            return scan_scores, (tile.view(torch.int16).numpy(), (_upper_bits(floors[0]), _upper_bits(floors[1])))
        return scan_scores, (tile.float().numpy(), floors)


def _upper_bits(floors: Float32[np.ndarray, " anchors"]) -> Int16[np.ndarray, " anchors"]:
    """Cut floors above 0 down to the bits of bfloat16."""
    return (floors.view(np.int32) >> 16).astype(np.int16)


def _bfloat16_product(problem: Problem) -> FloatProduct:
    adding = problem["i2t"].rounding_error
    (images, left_images), (captions, left_captions) = _norms(problem.images), _norms(problem.captions)
    # <a, c> - <a', c'> = <a - a', c> + <a', c - c'>, and then <a', c'> is added up in float32 and rounded itself.
    given = left_images * captions + (images + left_images) * left_captions
    error = 1.01 * (given + 1.02 * adding + LAST_BIT * problem.longest) + problem.images.shape[1] * SMALLEST
    return FloatProduct("bfloat16", error)


def _to_bfloat16(vectors: Float32[np.ndarray, "items D"]) -> torch.Tensor:
    """Round in one look: torch first copies vectors that are read-only, as mapped ones are."""
    rounded = np.empty(vectors.shape, np.int16)
    in_parallel(_round, len(vectors), read_only(np.ascontiguousarray(vectors)).view(np.int32), rounded)
    return torch.from_numpy(rounded).view(torch.bfloat16)


def _norms(vectors: Float32[np.ndarray, "items D"]) -> tuple[float, float]:
    """Largest norm, and largest norm of what bfloat16 leaves of a vector."""
    norm = rest = 0.0
    for start, stop in blocks(len(vectors), BLOCK):
        part = read_only(np.ascontiguousarray(vectors[start:stop]))
        squares, left = np.empty(len(part), np.float32), np.empty(len(part), np.float32)
        in_parallel(_square, len(part), part, part.view(np.int32), squares, left)
        norm, rest = max(norm, float(squares.max())), max(rest, float(left.max()))
    grown = 1 + (vectors.shape[1] + 2) * 2.0**-24  # more than float32 loses in adding up
    return math.sqrt(norm) * grown, math.sqrt(rest) * grown


@njit(nogil=True, cache=True)
@no_type_check
def _upper_half(bits: Any) -> Any:
    """Round the bits of a float32 to those of bfloat16: to the nearest, of two equally near the even one."""
    return (bits + np.int32(0x7FFF) + ((bits >> 16) & np.int32(1))) >> 16


@njit(nogil=True, cache=True)
@no_type_check
def _round(start: int, stop: int, bits: Any, rounded: Any) -> None:
    for row in range(start, stop):
        for k in range(bits.shape[1]):
            rounded[row, k] = _upper_half(bits[row, k])


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
@no_type_check
def _square(start: int, stop: int, vectors: Any, bits: Any, squares: Any, left: Any) -> None:
    """Square the rows, and what is left of them when they are rounded to bfloat16."""
    kept = np.empty(vectors.shape[1], np.int32)
    rounded = kept.view(np.float32)
    for row in range(start, stop):
        vector, ours = vectors[row], bits[row]
        for k in range(len(kept)):
            kept[k] = _upper_half(ours[k]) << 16
        square = rest = np.float32(0)
        for k in range(len(vector)):
            difference = vector[k] - rounded[k]
            rest += difference * difference
            square += vector[k] * vector[k]
        squares[row], left[row] = square, rest
