"""VSRN: Visual Semantic Reasoning for Image-Text Matching (Li et al., ICCV 2019)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.models.base import Captions, Code, EmbeddingModel, Images
from aoq.models.captioner import Captioner
from aoq.models.normalise import l2_normalise
from aoq.models.options import Fraction, Length, Size, Weight
from aoq.models.packing import run_over, sent, true_places
from aoq.models.regions import Fragments, Mask, Projection, compact, count, group_by_group, zero_masked
from aoq.models.text import TextEncoder


class RegionReasoning(nn.Module):
    """One residual graph layer over an image's n real regions, VSRN eq. (2) and (3).

        v <- v + BatchNorm(W_r (theta(v) phi(v)^T / n) g(v))

    BatchNorm starts with scale and shift 0, so a fresh layer is the identity. Masked regions are zero and stay so.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.theta = nn.Linear(size, size)
        self.phi = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.output = nn.Linear(size, size)
        self.norm = nn.BatchNorm1d(size)
        nn.init.zeros_(self.norm.weight)
        nn.init.zeros_(self.norm.bias)

    def forward(self, regions: Fragments, mask: Mask, places: Int[Tensor, " N"] | None) -> Fragments:
        """`places` are those of the real regions among all."""
        real = regions.shape[1] if mask is None else count(mask)[:, None, None]
        affinity = self._affinity(regions) / real
        if mask is not None:
            affinity = affinity.masked_fill(~mask.unsqueeze(1), 0)
        return regions + self._normalised(self._step(affinity, regions), places)

    def _affinity(self, regions: Fragments) -> Float[Tensor, "items fragments fragments"]:
        """Compute theta(v) phi(v)^T with one product over all regions instead of two.

        <T x + s, P y + t> = <P^T (T x + s), y> + <T x + s, t>, where theta(x) = T x + s and phi(y) = P y + t.
        """
        theta, phi = self.theta, self.phi
        queries = F.linear(regions, phi.weight.T @ theta.weight, theta.bias @ phi.weight)
        same_for_all = regions @ (phi.bias @ theta.weight) + theta.bias @ phi.bias
        return torch.baddbmm(same_for_all.unsqueeze(2), queries, regions.transpose(1, 2))

    def _step(self, affinity: Float[Tensor, "items fragments fragments"], regions: Fragments) -> Fragments:
        """Compute W_r (affinity g(v)) with one product over all regions.

        W (sum over y of a_y (V y + u)) + w = W V (sum of a_y y) + (sum of a_y) W u + w, where g(y) = V y + u, W and w
        are the output layer's, and the a_y are a row of the affinity.
        """
        value, output = self.value, self.output
        related = F.linear(torch.bmm(affinity, regions), output.weight @ value.weight, output.bias)
        return related + affinity.sum(2, keepdim=True) * (output.weight @ value.bias)

    def _normalised(self, step: Fragments, places: Int[Tensor, " N"] | None) -> Fragments:
        """Apply BatchNorm to the real regions, and set zero elsewhere."""
        every = step.flatten(0, 1)
        rows = every if places is None else every[places]
        # Laid out channel by channel, where torch's statistics are several times more exact.
        rows = self.norm(rows.T.contiguous().unsqueeze(0))[0].T.contiguous()
        rows = rows if places is None else torch.zeros_like(every).index_copy(0, places, rows)
        return rows.view(step.shape)


class VSRN(EmbeddingModel):
    """Four graph layers over the regions, a GRU over the result, and a captioner as a second task.

    Args:
        variant: Published variant: `coco` normalises projected regions; `f30k` ends in a BatchNorm instead.
        normalise_axis: `regions`: each channel over the regions, as the official code does. `features`: each region, as
            was meant.
        absolute: Compare absolute values.
        caption_weight: Weight of the captioning loss; 0 leaves the captioner out.
        caption_hidden_size: Length of the captioner's state.
        caption_word_size: Length of the captioner's word vectors.
        caption_max_length: Words of a caption that it learns to write, at most.
        caption_dropout: Dropout in the captioner.
        caption_bidirectional: A captioner that reads regions in both directions.
    """

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        embedding_size: Size = 2048,
        word_size: Size = 300,
        variant: Literal["coco", "f30k"] = "coco",
        normalise_axis: Literal["regions", "features"] = "regions",
        absolute: bool = False,
        normalise_images: bool = True,
        caption_weight: Weight = 1.0,
        caption_hidden_size: Size = 512,
        caption_word_size: Size = 300,
        caption_max_length: Length = 60,
        caption_dropout: Fraction = 0.2,
        caption_bidirectional: bool = False,
    ) -> None:
        super().__init__()
        self.variant, self.normalise_axis = variant, normalise_axis
        self.absolute, self.normalise_images, self.caption_weight = absolute, normalise_images, caption_weight
        self.project = Projection(feature_size, embedding_size)
        self.reasoning = nn.ModuleList(RegionReasoning(embedding_size) for _ in range(4))
        self.recurrence = nn.GRU(embedding_size, embedding_size, batch_first=True)
        self.norm = nn.BatchNorm1d(embedding_size) if variant == "f30k" else nn.Identity()
        self.text = TextEncoder(
            vocabulary_size, word_size=word_size, embedding_size=embedding_size, bidirectional=False
        )
        self.captioner: Captioner | None = None
        if caption_weight:
            self.captioner = Captioner(
                feature_size=embedding_size,
                vocabulary_size=vocabulary_size,
                hidden_size=caption_hidden_size,
                word_size=caption_word_size,
                max_length=caption_max_length,
                dropout=caption_dropout,
                bidirectional=caption_bidirectional,
            )

    def encode_images(self, images: Images) -> Code:
        images, lengths = compact(images)
        regions = group_by_group(self._regions, images.groups, images.features, images.mask, images.mask_here)
        _, last = run_over(self.recurrence, regions, lengths)
        vectors = group_by_group(self.norm, images.groups, last[0])
        vectors = l2_normalise(vectors) if self.normalise_images else vectors
        vectors = vectors.abs() if self.absolute else vectors
        if self.captioner is None:
            return Code(vectors)
        return Code(vectors, context=regions, context_mask=images.mask, lengths=lengths)

    def encode_captions(self, captions: Captions) -> Code:
        vectors = l2_normalise(self.text.last(captions))
        return Code(vectors.abs() if self.absolute else vectors)

    def auxiliary_loss(self, images: Code, captions: Captions) -> Float[Tensor, ""] | None:
        """Compute `caption_weight` times the loss of describing each image by its own caption."""
        if self.captioner is None or images.context is None:
            return None
        return self.caption_weight * self.captioner(images.context, images.lengths, captions)

    def _regions(self, features: Float[Tensor, "items fragments features"], mask: Mask, real: Mask) -> Fragments:
        """Reason over one group's regions; their norm is 1 along `normalise_axis`, and masked ones are zero."""
        regions, axis = zero_masked(self.project(features), mask), 1 if self.normalise_axis == "regions" else 2
        places = None if real is None else sent(true_places(real), features.device)
        if self.variant == "coco":
            regions = l2_normalise(regions, axis)
        for layer in self.reasoning:
            regions = layer(regions, mask, places)
        return l2_normalise(regions, axis)
