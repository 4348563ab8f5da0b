"""The device of a search as a value: the arithmetic of its products, tiles for its memory, exact scores, sorting.

Nothing else in `search` tells a CPU from a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from aoq.pipeline.arithmetic import BFLOAT16, FLOAT32, FLOAT64, TF32, Arithmetic
from aoq.pipeline.search.scores import score_pairs
from aoq.pipeline.threads import in_parallel

Vectors = Float32[Tensor, "items D"]


class Room(NamedTuple):
    """Rows and columns of a tile, bytes for vectors that stay, and the time of an exact score as `Arithmetic.cost`."""

    rows: int
    columns: int
    resident: int
    scoring: float


def arithmetics(device: torch.device) -> list[Arithmetic]:
    """What the device has units for."""
    if device.type == "cuda":
        has_tensor_cores = torch.cuda.get_device_capability(device) >= (8, 0)
        coarse = [BFLOAT16._replace(cost=0.01), TF32] if has_tensor_cores else []
        return [*coarse, FLOAT32._replace(cost=0.1), FLOAT64._replace(cost=1.0)]
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    has_bfloat16 = able.get("amx_bf16") or able.get("avx512_bf16")
    return [*([BFLOAT16] if has_bfloat16 else []), FLOAT32, FLOAT64]


def room_on(device: torch.device, memory: int, shrink: int) -> Room:
    """Choose tiles: on a CPU for its cache, on a GPU for a quarter of its memory; all divided by `shrink`.

    Raises:
        OSError: if there is too little memory for any tile.
    """
    if device.type != "cuda":
        free, room = memory, Room(1024, max(256, min(4096, memory // 2**18)), 0, scoring=14.0)
    else:
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = torch.cuda.mem_get_info(device)[0] + held
        side = int((free / 64) ** 0.5)
        room = Room(min(8192, side), min(16384, side), free // 2, scoring=1.0)
    if room.rows // shrink < 64:
        raise OSError(
            f"{device} has {free / 1e6:,.0f} MB free, which is too little for any tile of this search; free some of "
            "its memory, or search with [engine] device = cpu."
        )
    return room._replace(rows=room.rows // shrink, resident=room.resident // shrink)


def to_device(vectors: Float32[np.ndarray, "items D"], device: torch.device) -> Vectors:
    """Move a block of vectors; on a CPU it is shared if torch can share it."""
    if device.type == "cuda":
        return torch.from_numpy(np.array(vectors)).pin_memory().to(device, non_blocking=True)
    is_shared = vectors.flags.writeable and vectors.flags.c_contiguous
    return torch.from_numpy(vectors if is_shared else np.array(vectors)).to(device)


def multiply(rows: Float[Tensor, "rows D"], columns: Float[Tensor, "columns D"], out: Tensor | None = None) -> Tensor:
    """Multiply all rows with all columns. On AMD processors numpy's library takes a fifth less time than torch's."""
    if out is None:
        out = torch.empty(len(rows), len(columns), dtype=rows.dtype, device=rows.device)
    if rows.device.type == "cpu" and rows.dtype != torch.bfloat16:
        ours, theirs, products = rows.numpy(), columns.numpy().T, out.numpy()
        in_parallel(lambda a, b: np.matmul(ours[a:b], theirs, out=products[a:b]), len(rows), parts=1)
        return out
    return torch.mm(rows, columns.T, out=out)


def scores_on(
    vectors: Sequence[Float32[Tensor, "_ D"]],
    norms: Sequence[Float64[Tensor, " _"]],
    pairs: Sequence[Int64[Tensor, " pairs"]],
) -> Float32[Tensor, " pairs"]:
    """Score pairs exactly (`scores.score_pairs`); a GPU sums in float64, and leaves what that does not decide."""
    (ones, others), (rows, columns) = vectors, pairs
    if ones.device.type == "cpu":
        arrays = [each.numpy() for each in (*norms, *pairs)]
        return torch.from_numpy(score_pairs(ones.numpy(), others.numpy(), arrays[:2], arrays[2:]))
    found = []
    for some, theirs in zip(*(each.split(max(1, 2**25 // ones.shape[1])) for each in pairs), strict=True):
        totals = (ones[some].double() * others[theirs]).sum(1)
        errors = norms[0][some] * norms[1][theirs] * (ones.shape[1] + 1) * 2.0**-52
        lows, highs = (totals - errors).float(), (totals + errors).float()
        found.append(torch.where(lows == highs, lows + 0.0, torch.nan))
    scores = torch.cat(found) if found else ones.new_empty(0)
    if len(left := scores.isnan().nonzero().squeeze(1)):
        chosen = rows[left], columns[left]
        here = [[side[places].cpu() for side, places in zip(each, chosen, strict=True)] for each in (vectors, norms)]
        scores[left] = scores_on(here[0], here[1], [torch.arange(len(left))] * 2).to(scores.device)
    return scores


def sort_rows(keys: Int64[Tensor, "anchors width"]) -> Int64[Tensor, "anchors width"]:
    """Sort each row in place; on a CPU numpy takes a fraction of torch's time."""
    if keys.device.type != "cpu":
        return keys.copy_(keys.sort(dim=1).values)
    in_parallel(lambda start, stop: keys.numpy()[start:stop].sort(axis=1), len(keys))
    return keys
