"""What several training processes share: tensors, and the same draws from the same table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.nn.functional import all_gather

from aoq.pipeline.digests import digest
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, parts_of


def process_count() -> int:
    """Return the number of processes that train together."""
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_distributed else 1


def gather(part: Tensor) -> Tensor:
    """Concatenate the rows of all processes, with the gradients of all."""
    if process_count() == 1:
        return part
    if part.is_floating_point():
        return torch.cat(all_gather(part.contiguous()))
    parts = [torch.empty_like(part) for _ in range(process_count())]
    torch.distributed.all_gather(parts, part.contiguous())
    return torch.cat(parts)


def require_same_draws(table: NegativeTable | ScreenedTable, *options: Any) -> None:
    """Refuse to train if a process has another table or other options than the first; every process must call this.

    `options` are all that shapes the draws, and texts and names of pictures.

    Raises:
        ValueError: in every process, naming the one that differs.
    """
    if process_count() == 1:
        return
    bare, view, _ = parts_of(table)
    digests = [""] * process_count()
    own = digest([bare.sha256, view and dict(view.manifest), *map(str, options)])
    torch.distributed.all_gather_object(digests, own)
    if others := [rank for rank, one in enumerate(digests) if one != digests[0]]:
        raise ValueError(
            f"process {others[0]} has another table than process 0, or other texts, pictures or options; give every "
            "process the same."
        )
