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

LOOP_ROWS = 50
SEARCHED_TOGETHER = 4096
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


def prepare_usearch() -> Work:
    import torch
    from usearch.index import MetricKind, search

    threads = torch.get_num_threads()

    def work(images: np.ndarray, captions: np.ndarray, h_captions: int, h_images: int) -> dict[str, Any]:
        for anchors, candidates, k in ((images, captions, h_captions + EACH), (captions, images, h_images + 1)):
            search(np.asarray(candidates), np.asarray(anchors), k, MetricKind.IP, exact=True, threads=threads)
        return {}

    return work


def prepare_scikit_learn() -> Work:
    import torch
    from sklearn.neighbors import NearestNeighbors

    threads = torch.get_num_threads()

    def work(images: np.ndarray, captions: np.ndarray, h_captions: int, h_images: int) -> dict[str, Any]:
        for anchors, candidates, k in ((images, captions, h_captions + EACH), (captions, images, h_images + 1)):
            # Of vectors of norm 1 the order is the cosine's, and faster to find than by metric="cosine".
            index = NearestNeighbors(n_neighbors=k, algorithm="brute", metric="euclidean", n_jobs=threads)
            index.fit(np.asarray(candidates)).kneighbors(np.asarray(anchors))
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


def prepare_torch() -> Work:
    import torch

    def work(images: np.ndarray, captions: np.ndarray, h_captions: int, h_images: int) -> dict[str, Any]:
        for anchors, candidates, k in ((images, captions, h_captions + EACH), (captions, images, h_images + 1)):
            others = torch.from_numpy(np.asarray(candidates)).T
            step = max(1, 2**27 // len(candidates))  # 0.5 GB of similarities at a time
            for start in range(0, len(anchors), step):
                (torch.from_numpy(np.ascontiguousarray(anchors[start : start + step])) @ others).topk(k)
        return {}

    return work


def prepare_row_loop() -> Work:
    import torch

    def work(images: np.ndarray, captions: np.ndarray, h_captions: int, h_images: int) -> dict[str, Any]:
        for anchors, candidates, h in ((images, captions, h_captions), (captions, images, h_images)):
            others = torch.from_numpy(np.asarray(candidates))
            for row in range(LOOP_ROWS):
                score = (torch.from_numpy(np.ascontiguousarray(anchors[row])) * others).sum(1)
                score.argsort(descending=True)[:h]
        # The rows of one direction cost as much per candidate as those of the other.
        return {"factor": (len(images) * len(captions)) * 2 / (LOOP_ROWS * (len(images) + len(captions)))}

    return work


def prepare_sentence_transformers(use_faiss: bool) -> Work:
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    class HandsOutVectors:
        """The interface of a model that `mine_hard_negatives` needs; a text is "i 7" or "c 7"."""

        device = "cpu"
        model_card_data = type("Card", (), {"base_model": "vectors"})()

        def __init__(self, images: np.ndarray, captions: np.ndarray) -> None:
            self.vectors = {"i": images, "c": captions}

        def encode(self, texts: list[str], **_: object) -> np.ndarray:
            kind = texts[0][0]
            return np.asarray(self.vectors[kind][[int(text[2:]) for text in texts]])

        encode_query = encode_document = encode

        def get_embedding_dimension(self) -> int:
            return self.vectors["i"].shape[1]

        get_sentence_embedding_dimension = get_embedding_dimension

        def similarity(self, one: Any, other: Any) -> Any:
            import torch

            return torch.as_tensor(one) @ torch.as_tensor(other).T

        def similarity_pairwise(self, one: Any, other: Any) -> Any:
            import torch

            return (torch.as_tensor(one) * torch.as_tensor(other)).sum(-1)

    def work(images: np.ndarray, captions: np.ndarray, h_captions: int, h_images: int) -> dict[str, Any]:
        pairs = {"i": [f"i {n // EACH}" for n in range(len(captions))], "c": [f"c {n}" for n in range(len(captions))]}
        for anchor, positive, h in (("i", "c", h_captions), ("c", "i", h_images)):
            mine_hard_negatives(
                Dataset.from_dict({"anchor": pairs[anchor], "positive": pairs[positive]}),
                HandsOutVectors(images, captions),
                num_negatives=h,
                output_format="n-tuple",
                output_scores=True,
                use_faiss=use_faiss,
                faiss_batch_size=SEARCHED_TOGETHER,
                verbose=False,
            )
        return {}

    return work


RIVALS: dict[str, Callable[[], Work]] = {
    "faiss": prepare_faiss,
    "torch": prepare_torch,
    "usearch": prepare_usearch,
    "scikit-learn": prepare_scikit_learn,
    "row loop": prepare_row_loop,
    "command": prepare_command,
    **{f"product {name}": partial(prepare_product, name) for name in PRECISIONS},
    "sentence-transformers": partial(prepare_sentence_transformers, use_faiss=False),
    "sentence-transformers faiss": partial(prepare_sentence_transformers, use_faiss=True),
}


NEEDS = {"faiss": "faiss", "usearch": "usearch", "scikit-learn": "sklearn"}
"""Modules that rivals come in."""
