"""PFAN: Position Focused Attention Network for Image-Text Matching (Wang et al., IJCAI 2019)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aoq.models.attention import Block
from aoq.models.base import Aggregation, AttentionDirection, Code, Images, Size
from aoq.models.layers import zero_masked
from aoq.models.scan import SCAN

MOST_BLOCKS = 15


class PFAN(SCAN):
    """SCAN over regions with positions; t2i adds half the aggregate of each word's largest attention.

    A region's position is a sum of block embeddings, with weights softmax(share * softmax(tanh(<q, e_block>))) over
    the grid's blocks that its box covers.

    Args:
        position_size: Length of a region's position vector.
        grid: Blocks per side that an image is cut into.
        mask_padding: Leave a region's unused block places out of both softmaxes; as published they take part.
    """

    needs_boxes = True

    def __init__(
        self,
        *,
        feature_size: int,
        aggregation: Aggregation = "Mean",
        position_size: Size = 200,
        grid: Size = 16,
        mask_padding: bool = False,
        **options: Any,
    ) -> None:
        if options.get("image_tower") is not None:
            raise ValueError(
                "PFAN needs the box of every region, but patches have none; leave `image_tower` out, or choose scan."
            )
        super().__init__(feature_size=feature_size + position_size, aggregation=aggregation, **options)
        self.grid, self.mask_padding = grid, mask_padding
        self.block_embedding = nn.Embedding(grid * grid + 1, position_size)
        self.position_query = nn.Linear(feature_size, position_size)

    def encode_regions(self, images: Images) -> Code:
        features = zero_masked(images.features, images.mask)
        placed = torch.cat([features, self.position(features, images)], dim=2)
        return super().encode_regions(replace(images, features=placed))

    def position(
        self, features: Float[Tensor, "images regions features"], images: Images
    ) -> Float[Tensor, "images regions position"]:
        """Compute the position of every region, from boxes (4 numbers) or PFAN's own arrays (block indices, shares)."""
        if images.boxes is None:
            raise ValueError(
                "PFAN needs the box of every region, but these images have none; add {split}_boxes.npy "
                "(images, regions, 4), x1 y1 x2 y2 in [0, 1], to the dataset folder, or choose another model."
            )
        boxes = zero_masked(images.boxes, images.mask)
        if boxes.shape[2] == 4:
            indices, shares = grid_blocks(boxes, grid=self.grid, most=min(MOST_BLOCKS, self.grid**2))
        else:
            packed, shares = boxes.chunk(2, dim=2)
            indices = packed.long()
        # Queries are multiplied by all blocks at once: the table is smaller than the blocks of a batch.
        relevance = (self.position_query(features) @ self.block_embedding.weight.T).gather(2, indices).tanh()
        left_out, lowest = (indices == self.grid**2) & self.mask_padding, torch.finfo(relevance.dtype).min
        weights = shares * relevance.masked_fill(left_out, lowest).softmax(-1)
        weights = weights.masked_fill(left_out, lowest).softmax(-1)
        spread = torch.zeros(*indices.shape[:2], self.grid**2 + 1, dtype=weights.dtype, device=weights.device)
        return spread.scatter_add(2, indices, weights) @ self.block_embedding.weight

    def compare_in(self, block: Block, direction: AttentionDirection) -> Float[Tensor, "C I"]:
        if direction == "i2t":
            return super().compare_in(block, direction)
        weights = self.attend(block, direction)
        cosines = self.aggregate(block.attended_cosine(weights, direction), block, direction)
        return cosines + 0.5 * self.aggregate(weights.amax(3), block, direction)


def grid_blocks(
    boxes: Float[Tensor, "*items 4"], *, grid: int = 16, most: int = 15
) -> tuple[Int[Tensor, "*items most"], Float[Tensor, "*items most"]]:
    """Find the grid blocks that each box overlaps most, and their fractions of the overlap, largest first.

    `boxes` are x1, y1, x2, y2 as fractions of the image. Block (column x, row y) has index x * grid + y; unused places
    have index grid * grid and share 0. The rule is inferred from the official sample; in ties the lower index wins.

    >>> indices, shares = grid_blocks(torch.tensor([0.0, 0.0, 0.5, 0.75]), grid=2, most=3)
    >>> indices, shares
    (tensor([0, 1, 4]), tensor([0.6667, 0.3333, 0.0000]))
    """
    edges = torch.linspace(0, 1, grid + 1, dtype=boxes.dtype, device=boxes.device)
    low, high = boxes[..., :2].unsqueeze(-1), boxes[..., 2:].unsqueeze(-1)
    overlap = (torch.minimum(high, edges[1:]) - torch.maximum(low, edges[:-1])).clamp_min(0)
    area = (overlap[..., 0, :, None] * overlap[..., 1, None, :]).flatten(-2)
    # Coverage in thousandths of a block: rounding errors must not order blocks that are covered equally.
    key = (area.double() * (1000 * grid**2)).round().maximum((area > 0).double())
    key = key - torch.arange(grid**2, device=boxes.device) / (2 * grid**2)
    indices = key.topk(most, dim=-1).indices
    largest = area.gather(-1, indices)
    shares = largest / largest.sum(-1, keepdim=True).clamp_min(torch.finfo(area.dtype).tiny)
    return indices.masked_fill(largest == 0, grid**2), shares
