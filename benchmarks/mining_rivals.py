"""Rivals of `mining.py`, and the bare products: each gives the work that is timed, its libraries loaded."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mining_world import BLOCK, EACH

PRECISIONS = "float32", "bfloat16", "float64"
BARE = [f"product {name}" for name in PRECISIONS]

Work = Callable[[np.ndarray, np.ndarray, int, int], dict[str, Any]]


def prepare_command() -> Work:
    import torch

    threads = torch.get_num_threads()

    def work(images: Any, captions: Any, h_captions: int, h_images: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            given = [images.filename, captions.filename, Path(folder) / "table"]
            options = ["--h-captions", h_captions, "--h-images", h_images, "--per-image", EACH, "--threads", threads]
            code = "import sys; sys.path[0] = sys.argv.pop(1); from aoq.pipeline.cli import main; main(prog_name='aoq')"
            arguments = map(str, [sys.path[0], "mine", *given, *options])
            subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
        return {"memory": np.nan}  # another process's

    return work


def prepare_product(precision: str) -> Work:
    """Prepare the product of one arithmetic; vectors are rounded on the way, and nothing is looked at."""
    import torch
    from threadpoolctl import threadpool_limits

    from aoq.pipeline.search.device import arithmetics, multiply, to_device
    from aoq.pipeline.search.problem import blocks

    cpu = torch.device("cpu")
    how = next(each for each in arithmetics(cpu) if each.name == precision)

    @threadpool_limits.wrap(limits=1, user_api="blas")
    def work(images: np.ndarray, captions: np.ndarray, h_captions: int, h_images: int) -> dict[str, Any]:
        result = torch.empty(BLOCK // 4, BLOCK, dtype=how.dtype)
        for start, stop in blocks(len(captions), BLOCK):
            others = how.prepare(to_device(captions[start:stop], cpu))
            for first, last in blocks(len(images), BLOCK // 4):
                block = how.prepare(to_device(images[first:last], cpu))
                multiply(block, others, result.view(-1)[: len(block) * len(others)].view(len(block), len(others)))
        return {}

    return work


def prepare_faiss() -> Work:
    import faiss

    def work(images: np.ndarray, captions: np.ndarray, h_captions: int, h_images: int) -> dict[str, Any]:
        for anchors, candidates, k in ((images, captions, h_captions + EACH), (captions, images, h_images + 1)):
            index = faiss.IndexFlatIP(candidates.shape[1])
            index.add(candidates)
            index.search(anchors, k)
        return {}

    return work


RIVALS: dict[str, Callable[[], Work]] = {
    "faiss": prepare_faiss,
    "command": prepare_command,
    **{f"product {name}": partial(prepare_product, name) for name in PRECISIONS},
}
