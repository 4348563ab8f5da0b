"""Processes that train together draw from the same table, in the same way."""

from __future__ import annotations

from typing import Any

import torch

from aoq.pipeline.digests import digest
from aoq.pipeline.tables.screens.screened import ScreenedTable, parts_of
from aoq.pipeline.tables.table import NegativeTable


def require_alike(table: NegativeTable | ScreenedTable, *drawn: Any) -> None:
    """Refuse to train where a process has another table than the first, or draws otherwise; all must ask.

    `drawn` is what else must be alike: options, and texts and pictures by name.

    Raises:
        ValueError: names the process, in each of them.
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    bare, view, _ = parts_of(table)
    said = [""] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(said, digest([bare.sha256, view and dict(view.manifest), *map(str, drawn)]))
    if others := [rank for rank, one in enumerate(said) if one != said[0]]:
        raise ValueError(
            f"process {others[0]} has another table than process 0, or other texts, pictures or options; give every "
            "process the same."
        )
