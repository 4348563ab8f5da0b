"""The precision of float32 products on NVIDIA GPUs: float32 or TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from aoq.pipeline.config.training import Precision


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Use TF32 for products and in cuDNN if that is the precision; otherwise keep cuDNN from its default, TF32."""
    before, by_cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = by_cudnn
