"""PFAN: Position Focused Attention Network for Image-Text Matching (Wang et al., IJCAI 2019)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aoq.models.attention import aggregate, attended_cosine
from aoq.models.base import Code, Images
from aoq.models.blocks import Block
from aoq.models.normalise import l2_normalise
from aoq.models.positions import grid_blocks
from aoq.models.regions import zero_masked
from aoq.models.scan import SCAN

MOST_BLOCKS = 15


class PFAN(SCAN):
    """SCAN over regions that know where they lie; t2i adds half the aggregate of each word's largest attention.

    A region's position is a sum of block embeddings, with weights softmax(share * softmax(tanh(<q, e_block>))) over
    the grid's blocks that its box covers. Unused places of that list take part in both softmaxes, as published;
    `mask_padding` leaves them out.
    """

    needs_boxes = True

    def __init__(
        self,
        *,
        feature_size: int,
        aggregation: Any = "Mean",
        position_size: int = 200,
        grid: int = 16,
        mask_padding: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(feature_size=feature_size + position_size, aggregation=aggregation, **options)
        self.grid, self.mask_padding = grid, mask_padding
        self.block_embedding = nn.Embedding(grid * grid + 1, position_size)
        self.position_query = nn.Linear(feature_size, position_size)
        low, high = self.similarity_range
        if self.direction == "t2i":
            self.similarity_range = (low, high + 0.5 * max(1.0, high))

    def encode_images(self, images: Images) -> Code:
        features = zero_masked(images.features, images.mask)
        regions = self.project(torch.cat([features, self.position(features, images)], dim=2))
        regions = l2_normalise(regions) if self.normalise_images else regions
        return Code(zero_masked(regions, images.mask), images.mask)

    def position(
        self, features: Float[Tensor, "images regions features"], images: Images
    ) -> Float[Tensor, "images regions position"]:
        """The position of every region, from boxes (4 numbers) or from PFAN's own arrays (block indices, shares)."""
        if images.boxes is None:
            raise ValueError(
                "PFAN needs the box of every region, and these images have none; add {split}_boxes.npy "
                "(images, regions, 4), x1 y1 x2 y2 in [0, 1], to the dataset folder, or choose another model."
            )
        boxes = zero_masked(images.boxes, images.mask)
        if boxes.shape[2] == 4:
            indices, shares = grid_blocks(boxes, grid=self.grid, most=min(MOST_BLOCKS, self.grid**2))
        else:
            packed, shares = boxes.chunk(2, dim=2)
            indices = packed.long()
        # Queries meet all blocks at once: the table is smaller than the blocks of a batch.
        relevance = (self.position_query(features) @ self.block_embedding.weight.T).gather(2, indices).tanh()
        is_padding = indices == self.grid**2 if self.mask_padding else None
        weights = _softmax(shares * _softmax(relevance, is_padding), is_padding)
        spread = torch.zeros(*indices.shape[:2], self.grid**2 + 1, dtype=weights.dtype, device=weights.device)
        return spread.scatter_add(2, indices, weights) @ self.block_embedding.weight

    def compare(self, block: Block) -> Float[Tensor, "C I"]:
        if self.direction == "i2t":
            return super().compare(block)
        weights = self.attend(block)["t2i"]
        how: dict[str, Any] = {"aggregation": self.aggregation, "temperature": self.temperature_lse}
        cosines = aggregate(attended_cosine(block, weights, direction="t2i"), block, direction="t2i", **how)
        return cosines + 0.5 * aggregate(weights.amax(3), block, direction="t2i", **how)


def _softmax(x: Float[Tensor, "*axes"], left_out: Tensor | None) -> Float[Tensor, "*axes"]:
    return x.softmax(-1) if left_out is None else x.masked_fill(left_out, torch.finfo(x.dtype).min).softmax(-1)
