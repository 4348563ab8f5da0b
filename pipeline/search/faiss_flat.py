"""Brute-force search by FAISS, on the GPU where FAISS sees one."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float, Int64

logger = logging.getLogger(__name__)

GPU_MOST = 2048
"""The longest list that FAISS returns on a GPU."""


@cache
def load_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            "mining needs FAISS, which is not installed; install one of the two extras: "
            '`pip install "aoq[cpu]"` (faiss-cpu) or `pip install "aoq[gpu]"` (faiss-gpu).'
        ) from error
    return faiss


def search(
    anchors: Float[np.ndarray, "anchors D"], candidates: Float[np.ndarray, "candidates D"], k: int
) -> tuple[Float[np.ndarray, "anchors k"], Int64[np.ndarray, "anchors k"]]:
    """The k candidates of highest dot product for each anchor, falling; float32 arithmetic."""
    faiss = load_faiss()
    anchors = np.ascontiguousarray(anchors, dtype=np.float32)
    candidates = np.ascontiguousarray(candidates, dtype=np.float32)
    if k <= GPU_MOST and gpus() > 0:
        return faiss.knn_gpu(_gpu_memory(), anchors, candidates, k, metric=faiss.METRIC_INNER_PRODUCT)
    return faiss.knn(anchors, candidates, k, metric=faiss.METRIC_INNER_PRODUCT)


def gpus() -> int:
    faiss = load_faiss()
    return int(faiss.get_numgpus()) if hasattr(faiss, "StandardGpuResources") else 0


@cache
def _gpu_memory() -> Any:
    return load_faiss().StandardGpuResources()
