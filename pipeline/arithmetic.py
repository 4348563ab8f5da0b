"""In what float32 matrices are multiplied on NVIDIA GPUs: exactly, or in TF32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from aoq.pipeline.config.training import Precision


@contextmanager
def products_in(precision: Precision) -> Iterator[None]:
    """Let float32 matrices be multiplied in TF32 where that is the precision, and cuDNN, whose default it is, use it
    nowhere else."""
    before, by_cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else before)
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = by_cudnn
