"""SCAN: Stacked Cross Attention for Image-Text Matching (Lee et al., ECCV 2018)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from models.attention import LARGEST_TEMPERATURE, aggregate, paired_cosine
from models.base import Captions, Code, Images, MatchingModel
from models.blockwise import all_cosines, equal_length_runs
from models.normalise import l2_normalise, safe_norm
from models.regions import Projection, zero_masked
from models.text import TextEncoder

TEMPERATURE = {"t2i": 9.0, "i2t": 4.0}
RUN_WORDS = 128
TILE_IMAGES, TILE_CAPTIONS = 64, 256
LONG = 100


class SCAN(MatchingModel):
    """Words attend to regions (`t2i`) or regions to words (`i2t`); the similarity is an average of cosines.

    Attention is the softmax, with `temperature`, of products clipped at zero (leaky) and l2-normalised along the
    queries ("clipped_l2norm"). "LogSumExp" with `temperature_lse` is a soft maximum over the queries.
    """

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        embedding_size: int = 1024,
        word_size: int = 300,
        direction: Literal["t2i", "i2t"] = "t2i",
        aggregation: Literal["Mean", "LogSumExp"] = "LogSumExp",
        temperature: float | None = None,
        temperature_lse: float = 6.0,
        bidirectional: bool = True,
    ) -> None:
        super().__init__()
        self.direction, self.aggregation = direction, aggregation
        self.temperature = TEMPERATURE[direction] if temperature is None else temperature
        self.temperature_lse = temperature_lse
        if not 0 < self.temperature <= LARGEST_TEMPERATURE:
            raise ValueError(
                f"SCAN's temperature={self.temperature} is outside (0, {LARGEST_TEMPERATURE:g}], where the "
                "attention overflows or is none; the paper uses 9 (t2i) and 4 (i2t)."
            )
        if aggregation == "LogSumExp":
            # The sum over n queries adds up to log(n) / temperature_lse; captions of more than 100 words are rare.
            self.similarity_range = (-1.0, 1.0 + math.log(LONG) / temperature_lse)
        self.project = Projection(feature_size, embedding_size)
        self.text = TextEncoder(
            vocabulary_size, word_size=word_size, embedding_size=embedding_size, bidirectional=bidirectional
        )

    def encode_images(self, images: Images) -> Code:
        regions = self.project(zero_masked(images.features, images.mask))
        return Code(zero_masked(l2_normalise(regions), images.mask), images.mask)

    def encode_captions(self, captions: Captions) -> Code:
        words, mask = self.text.states(captions)
        return Code(zero_masked(l2_normalise(words), mask), mask)

    def similarity(self, images: Code, captions: Code) -> Float[Tensor, "images captions"]:
        """Every image against every caption; without gradients in tiles, so that memory stays small."""
        order = real_fragments(captions).sum(1).argsort(stable=True)
        captions = captions[order]
        if torch.is_grad_enabled():
            sorted_similarity = self._tile(images, captions)
        else:
            starts = range(0, len(captions), TILE_CAPTIONS)
            columns = [captions[start : start + TILE_CAPTIONS] for start in starts]
            starts = range(0, len(images), TILE_IMAGES)
            rows = [images[start : start + TILE_IMAGES] for start in starts]
            tiles = [torch.cat([self._tile(row, column) for column in columns]) for row in rows]
            sorted_similarity = torch.cat(tiles, dim=1)
        return sorted_similarity.T[:, order.argsort()]

    def _tile(self, images: Code, captions: Code) -> Float[Tensor, "captions images"]:
        """The transposed similarity, for captions sorted by length."""
        is_region, is_word = real_fragments(images), real_fragments(captions)
        regions, words = zero_masked(images.vectors, images.mask), captions.vectors[is_word]
        lengths = is_word.sum(1)
        cosines = all_cosines(
            regions,
            words,
            equal_length_runs(lengths.tolist(), RUN_WORDS),
            direction=self.direction,
            temperature=self.temperature,
        )
        if self.direction == "t2i":
            mask = torch.arange(cosines.shape[1], device=lengths.device) < lengths.unsqueeze(1)
            norm = torch.ones_like(mask, dtype=words.dtype).index_put((mask,), safe_norm(words).squeeze(-1))
            return self._aggregate(cosines / norm.unsqueeze(-1), mask.unsqueeze(-1), dim=1)
        return self._aggregate(cosines / safe_norm(regions).squeeze(-1), is_region, dim=2)

    def pair_similarity(self, images: Code, captions: Code) -> Float[Tensor, " pairs"]:
        regions, words = zero_masked(images.vectors, images.mask), zero_masked(captions.vectors, captions.mask)
        query, context, queries = (words, regions, captions) if self.direction == "t2i" else (regions, words, images)
        cosines = paired_cosine(query, context, temperature=self.temperature)
        return self._aggregate(cosines, real_fragments(queries), dim=1)

    def _aggregate(self, cosines: Tensor, mask: Tensor, dim: int) -> Tensor:
        return aggregate(
            cosines,
            mask.expand_as(cosines),
            dim=dim,
            aggregation=self.aggregation,
            temperature=self.temperature_lse,
        )


def real_fragments(code: Code) -> Bool[Tensor, "items fragments"]:
    """The mask of a code's fragments; all are real where it has none."""
    if code.mask is not None:
        return code.mask
    return torch.ones(code.vectors.shape[:2], dtype=torch.bool, device=code.vectors.device)
