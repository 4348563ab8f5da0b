"""Choose the device of a search and the arithmetic of its products there."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float32

from aoq.pipeline.search.device.arithmetic import Norms, Precision, error_bound, rounded
from aoq.pipeline.search.device.loaded import Where
from aoq.pipeline.search.device.onepass import device_costs, device_steps, device_work_bytes
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.units import Backend

TENSOR_CORES = 8, 0  # compute capability from which GPUs multiply bfloat16 and TF32
PROBED = 64, 8192
"""Anchors and candidates, at most, by whose scores the arithmetic is chosen."""
MOST = 4.0
"""A coarse arithmetic may leave this many times the wanted candidates to be rescored."""


def find_device(name: str) -> torch.device:
    """Find the GPU of this name, or the CPU; `auto` is the current GPU if torch sees any.

    Raises:
        ValueError: for a GPU that is not there.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"[engine] device is {name!r}; use auto, cpu, cuda, or cuda:0 and so on.") from None
    if device.type != "cuda":
        return torch.device("cpu")
    if (device.index or 0) >= count:
        raise ValueError(f"[engine] device is {name}, and torch sees {count} GPUs; use another, cpu or auto.")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def on_device(device: torch.device, precision: Precision | None = None) -> Backend:
    """Make the backend onepass for one device, in the precision that suits the problem if none is given."""

    def where(problem: Problem) -> Where:
        return Where(str(device), precision or choose_precision(problem, device))

    return Backend(
        "onepass",
        f"exact, both directions from one pass over tiles of similarities, on {device}",
        lambda problem: device_steps(where(problem), problem),
        costs=device_costs,
        work_bytes=device_work_bytes,
    )


def choose_precision(problem: Problem, device: torch.device) -> Precision:
    """Choose the fastest arithmetic of the device that leaves few candidates to be rescored."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < TENSOR_CORES:
        return "float32"
    coarse: tuple[Precision, ...] = "bfloat16", "tf32"
    return next((precision for precision in coarse if rescored(problem, precision) <= MOST), "float32")


def rescored(problem: Problem, precision: Precision) -> float:
    """Estimate how many candidates the arithmetic cannot tell from the wanted ones, as a multiple of these.

    The median of some anchors, each with some candidates, evenly spaced.
    """
    side, size = problem[problem.directions[0]], problem.size(problem.directions[0])
    anchors, candidates = _spaced(side.anchors, PROBED[0]), _spaced(side.candidates, PROBED[1])
    error = error_bound(_norms(anchors, precision), _norms(candidates, precision), anchors.shape[1], precision)
    scores = np.sort(anchors.numpy() @ candidates.numpy().T, axis=1)
    rank = max(1, round(size.wanted * len(candidates) / size.candidates))
    reached = (scores >= scores[:, -rank, None] - 2 * error).sum(1)
    return float(np.median(reached)) / rank


def _spaced(vectors: Float32[np.ndarray, "items D"], most: int) -> Float32[torch.Tensor, "some D"]:
    rows = np.linspace(0, len(vectors) - 1, min(most, len(vectors))).astype(np.int64)
    return torch.from_numpy(vectors[rows])


def _norms(vectors: Float32[torch.Tensor, "some D"], precision: Precision) -> Norms:
    left = vectors.double() - rounded(vectors, precision).double()
    return Norms(float(vectors.double().norm(dim=1).max()), float(left.norm(dim=1).max()))
