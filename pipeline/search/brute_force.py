"""Brute-force search in float32, by FAISS where it is installed (on a GPU if it sees one), otherwise by torch.

Few anchors are searched by torch: FAISS reads the candidates once for each, and takes up to eight times as long.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64

from aoq.pipeline.search.problem import BLOCK, blocks

GPU_MOST = 2048
"""The longest list that FAISS returns on a GPU."""
FEW = 256
"""Anchors that torch searches faster than FAISS does."""


def has_faiss() -> bool:
    return find_spec("faiss") is not None


@cache
def load_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise ImportError(
            'this search needs FAISS, which is not installed: `pip install "aoq[cpu]"` (faiss-cpu) or '
            '`pip install "aoq[gpu]"` (faiss-gpu); or search with onepass, which needs neither.'
        ) from error
    return faiss


def gpus() -> int:
    """Count the GPUs that FAISS sees."""
    return int(load_faiss().get_num_gpus()) if has_faiss() else 0


def search(
    anchors: Float[np.ndarray, "anchors D"], candidates: Float[np.ndarray, "candidates D"], k: int
) -> tuple[Float[np.ndarray, "anchors k"], Int64[np.ndarray, "anchors k"]]:
    """Find the k candidates of highest dot product for each anchor, falling; float32 arithmetic."""
    anchors = np.ascontiguousarray(anchors, dtype=np.float32)
    candidates = np.ascontiguousarray(candidates, dtype=np.float32)
    if len(anchors) <= FEW or not has_faiss():
        return _search_by_torch(anchors, candidates, k)
    faiss = load_faiss()
    if k <= GPU_MOST and gpus() > 0:
        return faiss.knn_gpu(_gpu_memory(), anchors, candidates, k, metric=faiss.METRIC_INNER_PRODUCT)
    return faiss.knn(anchors, candidates, k, metric=faiss.METRIC_INNER_PRODUCT)


@cache
def _gpu_memory() -> Any:
    return load_faiss().StandardGpuResources()


@torch.inference_mode()
def _search_by_torch(
    anchors: Float32[np.ndarray, "anchors D"], candidates: Float32[np.ndarray, "candidates D"], k: int
) -> tuple[Float32[np.ndarray, "anchors k"], Int64[np.ndarray, "anchors k"]]:
    """Compute the products tile by tile and keep the k best so far."""
    scores, ids = np.empty((len(anchors), k), np.float32), np.empty((len(anchors), k), np.int64)
    for rows in blocks(len(anchors), BLOCK):
        queries = tensor_of(anchors[slice(*rows)])
        best, places = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
        for first, last in blocks(len(candidates), BLOCK):
            near, columns = (queries @ tensor_of(candidates[first:last]).T).topk(min(k, last - first))
            both, every = torch.cat([best, near], 1), torch.cat([places, columns + first], 1)
            best, order = both.topk(min(k, both.shape[1]))
            places = every.gather(1, order)
        scores[slice(*rows)], ids[slice(*rows)] = best.numpy(), places.numpy()
    return scores, ids


def tensor_of(vectors: Float32[np.ndarray, "items D"]) -> torch.Tensor:
    """Return the vectors as a tensor; read-only ones are copied, because torch does not take them."""
    return torch.from_numpy(vectors) if vectors.flags.writeable else torch.tensor(vectors)
