"""The parts of a search that depend on the device: which arithmetics it has, tiles, products and sorting."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, no_type_check

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int64
from torch import Tensor

from aoq.pipeline.engine import CHOOSE_CPU, in_parallel
from aoq.pipeline.extras import compiled
from aoq.pipeline.search.arithmetic import BFLOAT16, FLOAT32, FLOAT64, TF32, Arithmetic
from aoq.pipeline.search.scores import score_pairs, sum_in_float64


class Tiling(NamedTuple):
    """Tile size, bytes for vectors that stay on the device, and the cost of an exact score (`Arithmetic.cost`)."""

    rows: int
    columns: int
    resident: int
    scoring: float
    pairs: int
    """Pairs scored together; a tile that selects more is divided. On a GPU each call waits for the device."""


def arithmetics(device: torch.device) -> list[Arithmetic]:
    """List the arithmetics that the device has units for."""
    if device.type == "cuda":
        coarse = [BFLOAT16._replace(cost=0.01), TF32] if torch.cuda.get_device_capability(device) >= (8, 0) else []
        return [*coarse, FLOAT32._replace(cost=0.1), FLOAT64._replace(cost=1.0)]
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    has_bfloat16 = able.get("amx_bf16") or able.get("avx512_bf16")
    return [*([BFLOAT16] if has_bfloat16 else []), FLOAT32, FLOAT64]


def choose_tiling(device: torch.device, memory: int, shrink: int) -> Tiling:
    """Choose tiles whose vectors fit a CPU's cache or a quarter of a GPU's memory, divided by `shrink`.

    Raises:
        OSError: if there is too little memory for any tile.
    """
    if device.type != "cuda":
        free, tiling = memory, Tiling(4096, max(256, min(2048, memory // 2**18)), 0, 14.0, 2**19)
    else:
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + held
        side = int((free / 64) ** 0.5)
        tiling = Tiling(min(8192, side), min(16384, side), free // 2, 1.0, 2**21)
    if tiling.rows // shrink < 64:
        raise OSError(
            f"{device} has {free / 1e6:,.0f} MB free, which is too little for any tile of this search; free some of "
            f"its memory, or {CHOOSE_CPU}."
        )
    return tiling._replace(rows=tiling.rows // shrink, resident=tiling.resident // shrink, pairs=tiling.pairs // shrink)


def to_device(vectors: Float32[np.ndarray, "items D"], device: torch.device) -> Float32[Tensor, "items D"]:
    """Move a block of vectors to the device; on a CPU share it: it may be read-only, so never write to it."""
    if device.type == "cuda":
        return torch.from_numpy(np.array(vectors)).pin_memory().to(device, non_blocking=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writ")
        return torch.from_numpy(np.ascontiguousarray(vectors)).to(device)


def marked_places(mask: Bool[Tensor, "*axes"]) -> Int64[Tensor, " places"]:
    """List the places where a mask is True, in the flattened order."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # a few places take numpy a sixth of torch's time
    return mask.flatten().nonzero().squeeze(1)


def multiply(rows: Float[Tensor, "rows D"], columns: Float[Tensor, "columns D"], out: Tensor | None = None) -> Tensor:
    """Multiply all rows with all columns."""
    if out is None:
        out = torch.empty(len(rows), len(columns), dtype=rows.dtype, device=rows.device)
    if rows.device.type == "cpu" and rows.dtype != torch.bfloat16:  # numpy's BLAS takes 20 % less time on AMD
        ours, theirs, products = rows.numpy(), columns.numpy().T, out.numpy()
        in_parallel(lambda a, b: np.matmul(ours[a:b], theirs, out=products[a:b]), len(rows), parts=1)
        return out
    return torch.mm(rows, columns.T, out=out)


def scores_on(
    vectors: Sequence[Float32[Tensor, "_ D"]],
    norms: Sequence[Float64[Tensor, " _"]],
    pairs: Sequence[Int64[Tensor, " pairs"]],
) -> Float32[Tensor, " pairs"]:
    """Score pairs exactly; a GPU leaves those that a float64 sum does not decide to the CPU."""
    if vectors[0].device.type == "cpu":
        (one, other), sizes, places = ([each.numpy() for each in both] for both in (vectors, norms, pairs))
        return torch.from_numpy(score_pairs(one, other, sizes, places))
    scores = sum_in_float64(vectors, norms, pairs)
    if len(left := scores.isnan().nonzero().squeeze(1)):
        here = [[side[p[left]].cpu() for side, p in zip(each, pairs, strict=True)] for each in (vectors, norms)]
        scores[left] = scores_on(here[0], here[1], [torch.arange(len(left))] * 2).to(scores.device)
    return scores


def append_keys(
    keys: Int64[Tensor, "anchors width"],
    counts: Int64[Tensor, " anchors"],
    anchors: Int64[Tensor, " new"],
    new: Int64[Tensor, " new"],
) -> None:
    """Write each new key behind the `counts` keys of its anchor's row, and count it."""
    if keys.device.type == "cpu":
        _append_keys(keys.numpy(), counts.numpy(), anchors.numpy(), new.numpy())
        return
    anchors, order = anchors.sort(stable=True)
    added = torch.bincount(anchors, minlength=len(counts))
    first = counts - added.cumsum(0) + added
    keys[anchors, first[anchors] + torch.arange(len(anchors), device=keys.device)] = new[order]
    counts.add_(added)


@compiled()
@no_type_check
def _append_keys(keys: Any, counts: Any, anchors: Any, new: Any) -> None:
    for place in range(len(anchors)):
        anchor = anchors[place]
        keys[anchor, counts[anchor]] = new[place]
        counts[anchor] += 1


def sort_rows(keys: Int64[Tensor, "anchors width"]) -> Int64[Tensor, "anchors width"]:
    """Sort each row in place; on a CPU numpy is several times faster than torch."""
    if keys.device.type != "cpu":
        return keys.copy_(keys.sort(dim=1).values)
    in_parallel(lambda start, stop: keys.numpy()[start:stop].sort(axis=1), len(keys))
    return keys
