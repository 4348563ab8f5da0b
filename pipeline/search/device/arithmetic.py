"""Near products of a device's fast arithmetic, and how far they can be from the exact ones.

Vectors a and c are rounded to a' and c', their products added up in float32, and the sum is rounded to bfloat16 where
the vectors are. Then

    |<a, c> - near| <= |a - a'| |c| + |a'| |c - c'| + (D + 1) 2^-22 |a'| |c'|

and for bfloat16 2^-8 of the sum more. Tensor cores add in any order. They align a few products and a sum to the
largest of them and cut what lies below 24 bits (Fasi et al. 2021, https://doi.org/10.7717/peerj-cs.330). So each
product costs at most 2^-22 of the sum of all absolute values, four times a float32 rounding. Numbers below 2^-126 may
count as 0.

Products of 8-bit floats are left out: their sums have fewer bits than float32's, and how many is not documented.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Float32
from torch import Tensor

Precision = Literal["bfloat16", "tf32", "float32"]

CUT = 2.0**-22
ROUNDED = 2.0**-8
SMALLEST = 2.0**-126
SPARE = 1.01


class Norms(NamedTuple):
    """Largest norm of one side's vectors, and largest norm of what rounding takes from a vector."""

    vector: float
    left: float


def rounded(vectors: Float32[Tensor, "items D"], precision: Precision) -> Float[Tensor, "items D"]:
    """Round the vectors to what the device multiplies."""
    if precision == "bfloat16":
        return vectors.bfloat16()
    return _to_tf32(vectors) if precision == "tf32" else vectors


def _to_tf32(vectors: Float32[Tensor, "items D"]) -> Float32[Tensor, "items D"]:
    """Round to 10 bits after the leading one, so that a tensor core finds nothing to cut.

    >>> _to_tf32(torch.tensor([[1 + 2**-10, 1 + 2**-11, -1 - 2**-12]])).tolist()
    [[1.0009765625, 1.0009765625, -1.0]]
    """
    return ((vectors.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def error_bound(images: Norms, captions: Norms, dimensions: int, precision: Precision) -> float:
    """Bound the difference between a near product and the exact one, for any pair."""
    norms = (images.vector + images.left) * (captions.vector + captions.left)
    given = images.left * captions.vector + (images.vector + images.left) * captions.left
    adding = (dimensions + 1) * CUT * norms
    result = ROUNDED * (norms + adding) if precision == "bfloat16" else 0.0
    lost = SMALLEST * (dimensions + math.sqrt(dimensions) * (images.vector + captions.vector))
    return SPARE * (given + adding + result + lost)


@contextmanager
def products_of(precision: Precision) -> Iterator[None]:
    """Multiply as the bound says, whatever this process allows elsewhere; its settings are put back."""
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision(), matmul.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    matmul.allow_bf16_reduced_precision_reduction = False  # else partial sums may be added up in bfloat16
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        matmul.allow_bf16_reduced_precision_reduction = before[1]
