"""Near dot products of blocks: fast, and off by a known error at most."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float32

from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.products.floats import float_product
from aoq.pipeline.search.products.int8 import Int8Product, int8_works
from aoq.pipeline.search.products.int16 import int16_product
from aoq.pipeline.search.products.int16_kernel import int16_works
from aoq.pipeline.search.tiles import TileKeeper

Precision = Literal["float32", "bfloat16", "int16", "int8"]


@runtime_checkable
class Product(Protocol):
    """All dot products of one block of vectors with another."""

    @property
    def precision(self) -> str: ...

    @property
    def error(self) -> float:
        """How far the scores that `scan` keeps can be from the exact products."""

    def prepare(self, vectors: Float32[np.ndarray, "items D"]) -> Any:
        """A block, for the two methods below."""

    def __call__(self, one: Any, other: Any) -> Float32[np.ndarray, "items others"]:
        """The near products; the next call may overwrite them: fresh memory would cost a tenth more."""

    def scan(self, images: Any, captions: Any, first_caption: int, keeper: TileKeeper) -> None:
        """Hand over the pairs whose near score reaches a limit; all others score less than it plus `error`, exactly."""


def near_product(problem: Problem, precision: Precision | None = None) -> Product:
    """In what this processor multiplies fastest."""
    precision = precision or fastest_precision()
    if precision == "int8" and int8_works(problem.images.shape[1]):
        return Int8Product(problem["i2t"].rounding_error)
    if precision == "int16" and int16_works():
        return int16_product(problem)
    return float_product(problem, "bfloat16" if precision == "bfloat16" else "float32")


def fastest_precision() -> Precision:
    """For dot products on this processor: bfloat16 or integers where it has units for them."""
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    if able.get("amx_bf16") or able.get("avx512_bf16"):
        return "bfloat16"
    if (able.get("avx512_vnni") or able.get("avx_vnni")) and int8_works():
        return "int8"
    return "int16" if int16_works() else "float32"
