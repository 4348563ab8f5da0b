"""Where a region lies: the blocks of a grid over the image that its box covers (PFAN, Wang et al., IJCAI 2019)."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def grid_blocks(
    boxes: Float[Tensor, "*items 4"], *, grid: int = 16, most: int = 15
) -> tuple[Int[Tensor, "*items most"], Float[Tensor, "*items most"]]:
    """The blocks that each box overlaps most, and the shares of the overlap, largest first.

    `boxes` are x1, y1, x2, y2 as shares of the image. Block (column x, row y) has index x * grid + y; unused places
    have index grid * grid and share 0. The rule is recovered from the official sample, whose ties are arbitrary; here
    the lower index wins.

    >>> indices, shares = grid_blocks(torch.tensor([0.0, 0.0, 0.5, 0.75]), grid=2, most=3)
    >>> indices, shares
    (tensor([0, 1, 4]), tensor([0.6667, 0.3333, 0.0000]))
    """
    edges = torch.linspace(0, 1, grid + 1, dtype=boxes.dtype, device=boxes.device)
    low, high = boxes[..., :2].unsqueeze(-1), boxes[..., 2:].unsqueeze(-1)
    overlap = (torch.minimum(high, edges[1:]) - torch.maximum(low, edges[:-1])).clamp_min(0)
    area = (overlap[..., 0, :, None] * overlap[..., 1, None, :]).flatten(-2)
    # Rounding tells blocks apart that are covered alike; a thousandth of a block does not. But covered is covered.
    key = (area.double() * (1000 * grid**2)).round().maximum((area > 0).double())
    key = key - torch.arange(grid**2, device=boxes.device) / (2 * grid**2)
    indices = key.topk(most, dim=-1).indices
    kept = area.gather(-1, indices)
    shares = kept / kept.sum(-1, keepdim=True).clamp_min(torch.finfo(area.dtype).tiny)
    return indices.masked_fill(kept == 0, grid**2), shares
