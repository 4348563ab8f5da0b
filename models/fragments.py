"""Models that compare every word of a caption with every region of an image: SCAN and its descendants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from aoq.models.attention import CONTEXT_AXIS, QUERY_AXIS, Block, Regions, masked_softmax, real_or_lowest
from aoq.models.base import (
    Aggregation,
    AttentionDirection,
    Captions,
    Code,
    FragmentAttention,
    Images,
    MatchingModel,
    Normalisation,
    Size,
    real_first,
    real_fragments,
)
from aoq.models.layers import Projection, TextEncoder, clipped_unit, l1_normalise, l2_normalise, zero_masked
from aoq.models.packing import sent
from aoq.models.towers.image_towers import open_image_tower
from aoq.models.towers.text_towers import TextTower, open_text_tower

TILE_IMAGES, TILE_CAPTIONS = 64, 256
SLOPE = 0.1


class FragmentModel(MatchingModel):
    """A model that compares every word with every region, block by block of pairs.

    In each of its `directions` a query attends to its context; its similarity is the cosine with what it attends to.
    A region is l2(W v + b), a word the l2-normalised state of a GRU. With `text_tower` words are the word pieces of a
    pretrained encoder, through a linear layer.

    Args:
        normalise_captions: Divide word vectors by their norm.
        weight_norm: Learn the norm of the regions' projection apart from its direction.
    """

    attends = scores_alone = True
    directions: tuple[AttentionDirection, ...] = ("t2i",)
    temperature: float
    normalisation: Normalisation = "clipped_l2norm"
    aggregation: Aggregation = "Mean"
    temperature_lse: float = 1.0
    block_words = 128
    """Largest number of words in a block of the similarity matrix: small enough for the cache."""

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        embedding_size: Size = 1024,
        word_size: Size = 300,
        bidirectional: bool = True,
        normalise_images: bool = True,
        normalise_captions: bool = True,
        weight_norm: bool = False,
        word_dropout: float = 0.0,
        image_tower: str | None = None,
        text_tower: str | None = None,
    ) -> None:
        super().__init__()
        self.image = None if image_tower is None else open_image_tower(image_tower)
        feature_size = feature_size if self.image is None else self.image.size
        self.normalise_images, self.normalise_captions = normalise_images, normalise_captions
        self.project = Projection(feature_size, embedding_size)
        if weight_norm:  # dim=None: one norm for all of W
            parametrizations.weight_norm(self.project, dim=None)  # type: ignore[arg-type]
        sizes: dict[str, Any] = {"vocabulary_size": vocabulary_size, "embedding_size": embedding_size}
        self.text: TextEncoder | TextTower
        if text_tower is None:
            self.text = TextEncoder(**sizes, word_size=word_size, bidirectional=bidirectional, dropout=word_dropout)
        else:
            self.text = open_text_tower(text_tower, **sizes)

    def encode_images(self, images: Images) -> Code:
        return self.encode_regions(images if self.image is None else self.image.regions(images))

    def encode_regions(self, images: Images) -> Code:
        regions = self.project(zero_masked(images.features, images.mask))
        regions = l2_normalise(regions) if self.normalise_images else regions
        return Code(zero_masked(regions, images.mask), images.mask)

    def encode_captions(self, captions: Captions) -> Code:
        words, mask = self.text.states(captions)
        return Code(l2_normalise(words) if self.normalise_captions else words, mask, lengths=captions.lengths)

    def attend(self, block: Block, direction: AttentionDirection) -> Float[Tensor, "C W I R"]:
        """Compute the weights that sum a query's context; they sum to 1 over the real context.

        a = softmax over the context of temperature * x, where x are the products, clipped (LeakyReLU 0.1) or not and
        normalised along the queries: SCAN's `raw_feature_norm`.
        """
        query, context = QUERY_AXIS[direction], CONTEXT_AXIS[direction]
        products, how = block.products, self.normalisation
        slope = SLOPE if how.startswith("clipped") else 1.0
        if how == "softmax":
            products = masked_softmax(products, block.mask(query), query)
        elif how.endswith("l2norm"):
            # No epsilon: the products of a single query must be exactly 1 or -1, so that equal ones stay equal (BFAN).
            products = clipped_unit(products, query, slope)
        else:
            products = products if slope == 1 else F.leaky_relu(products, slope)
            products = l1_normalise(products, query) if how.endswith("l1norm") else products
        return masked_softmax(self.temperature * products, block.mask(context), context)

    def compare(self, block: Block) -> Float[Tensor, "C I"]:
        """Compute the similarity of each caption with each image of its block, the sum of all directions'."""
        first, *others = (self.compare_in(block, direction) for direction in self.directions)
        return sum(others, first)

    def compare_in(self, block: Block, direction: AttentionDirection) -> Float[Tensor, "C I"]:
        weights = self.attend(block, direction)
        return self.aggregate(block.attended_cosine(weights, direction), block, direction)

    def aggregate(
        self, values: Float[Tensor, "C W_or_I I_or_R"], block: Block, direction: AttentionDirection
    ) -> Float[Tensor, "C I"]:
        """Aggregate all queries of a pair: mean, sum, maximum, or log(sum exp(temperature * x)) / temperature."""
        dim, mask = (1, block.mask(1)) if direction == "t2i" else (2, block.mask(3))
        mask = None if mask is None else mask.squeeze(CONTEXT_AXIS[direction])
        if self.aggregation in ("Mean", "Sum"):
            total = values.sum(dim) if mask is None else values.masked_fill(~mask, 0).sum(dim)
            if self.aggregation == "Sum":
                return total
            return total / (values.shape[dim] if mask is None else mask.sum(dim).clamp_min(1))
        values, temperature = real_or_lowest(values, mask, dim), self.temperature_lse
        return values.amax(dim) if self.aggregation == "Max" else (temperature * values).logsumexp(dim) / temperature

    def similarity(self, images: Code, captions: Code) -> Float[Tensor, "images captions"]:
        """Score every image against every caption; without gradients in tiles, so that memory stays small."""
        captions = real_first(captions)
        assert captions.lengths is not None
        order = captions.lengths.argsort(stable=True)
        captions = captions[order]
        rows, columns = [images], [captions]
        if not torch.is_grad_enabled():
            rows = [images[start : start + TILE_IMAGES] for start in range(0, len(images), TILE_IMAGES)]
            columns = [captions[start : start + TILE_CAPTIONS] for start in range(0, len(captions), TILE_CAPTIONS)]
        tiles = [torch.cat([self.compare(b) for column in columns for b in self._blocks(row, column)]) for row in rows]
        return torch.cat(tiles, dim=1).T[:, sent(order.argsort(), images.vectors.device)]

    def pair_similarity(self, images: Code, captions: Code) -> Float[Tensor, " pairs"]:
        return self.compare(self.pair_block(images, captions)).squeeze(1)

    def fragment_attention(self, images: Code, captions: Code) -> tuple[FragmentAttention, ...]:
        block = self.pair_block(images, captions)
        words, regions = (block.words, real_fragments(captions)), (block.regions.vectors[:, 0], real_fragments(images))
        attentions, has_ends = [], getattr(self.text, "has_ends", True)
        for direction in self.directions:
            (queries, real), (keys, real_keys) = (words, regions) if direction == "t2i" else (regions, words)
            weights = self.attend(block, direction).squeeze(2)
            weights = weights if direction == "t2i" else weights.transpose(1, 2)
            weights = weights.masked_fill(~real.unsqueeze(2), 0)
            attentions.append(FragmentAttention(direction, queries, keys, weights, real, real_keys, has_ends))
        return tuple(attentions)

    def pair_block(self, images: Code, captions: Code) -> Block:
        """Make the block of image b with caption b."""
        words = zero_masked(captions.vectors, captions.mask)
        regions = _side(images, axis=1)
        products = (words @ regions.vectors.squeeze(1).transpose(1, 2)).unsqueeze(2)
        return Block(words, captions.mask, captions.pooled, regions, products, is_aligned=True)

    def _blocks(self, images: Code, captions: Code) -> Iterator[Block]:
        """Yield blocks of captions of one length, which are sorted; one product multiplies all words and regions."""
        assert captions.lengths is not None
        runs, regions = equal_length_runs(captions.lengths.tolist(), self.block_words), _side(images, axis=0)
        sizes, counts = [count * length for count, length in runs], [count for count, _ in runs]
        some = zip(captions.vectors.split(counts), runs, strict=True)
        words = torch.cat([vectors[:, :length].flatten(0, 1) for vectors, (_, length) in some])
        products = (words @ regions.vectors.flatten(0, 2).T).view(-1, *regions.vectors.shape[1:3]).split(sizes)
        pooled = [None] * len(runs) if captions.pooled is None else captions.pooled.split(counts)
        for shape, part, product, global_vectors in zip(runs, words.split(sizes), products, pooled, strict=True):
            part, product = part.unflatten(0, shape), product.unflatten(0, shape)
            yield Block(part, None, global_vectors, regions, product, is_aligned=False)


def _side(images: Code, *, axis: int) -> Regions:
    """Return the images as one group (axis 0), or one group per image (axis 1)."""
    vectors = zero_masked(images.vectors, images.mask)
    mask = None if images.mask is None else images.mask.unsqueeze(axis)
    return Regions(vectors.unsqueeze(axis), mask, None if images.pooled is None else images.pooled.unsqueeze(axis))


def equal_length_runs(lengths: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Cut captions, sorted by length, into runs of one length and at most `most` words (or one caption).

    Returns the number of captions and their length for each run.

    >>> equal_length_runs([3, 3, 3, 5], 6)
    [(2, 3), (1, 3), (1, 5)]
    """
    runs: list[tuple[int, int]] = []
    for length, count in Counter(lengths).items():
        step = max(1, most // max(1, length))
        runs += [(min(step, count - start), length) for start in range(0, count, step)]
    return runs
