"""VSE∞: Learning the Best Pooling Strategy for Visual Semantic Embedding (Chen et al., CVPR 2021)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from aoq.models.base import Captions, Code, EmbeddingModel, Fraction, Images, Size
from aoq.models.layers import Fragments, Mask, Projection, TextEncoder, count, group_by_group, l2_normalise, zero_masked
from aoq.models.packing import ranks, run_over, sent, true_places
from aoq.models.towers.image_towers import open_image_tower
from aoq.models.towers.text_towers import TextTower, open_text_tower

MASKED, REPLACED = 0.5, 0.6
"""Cumulative fractions of chosen words that become <mask>, or any word, with `augment_words = "mask"`."""


class VSEInfinity(EmbeddingModel):
    """image = l2(GPO_r(W v_r + MLP(v_r))), caption = l2(GPO_w(state of a bidirectional GRU at w)), each its own GPO.

    With `text_tower`, such as the paper's BERT, a caption's first and last ids are the tokeniser's and never left out.

    What the paper leaves open is as in the code: the MLP is Linear, BatchNorm, ReLU, Linear, half as wide inside as
    the embedding. Its statistics are those of real regions; in the code zero padding counts too.

    Args:
        size_augmentation: Probability that a region or word is left out in training, before it is encoded.
        augment_words: `mask`: leave out 40 % of the chosen words, replace 50 % by <mask>, the model's own word after
            the vocabulary, and 10 % by any word, as in the released code.
    """

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        embedding_size: Size = 1024,
        word_size: Size = 300,
        size_augmentation: Fraction = 0.2,
        augment_words: Literal["drop", "mask"] = "drop",
        text_tower: str | None = None,
        image_tower: str | None = None,
    ) -> None:
        super().__init__()
        self.image = None if image_tower is None else open_image_tower(image_tower)
        feature_size = feature_size if self.image is None else self.image.size
        self.augment = SizeAugmentation(size_augmentation)
        self.mask_word = vocabulary_size if augment_words == "mask" else None
        self.project = Projection(feature_size, embedding_size)
        half = embedding_size // 2
        layers = nn.Linear(feature_size, half), nn.BatchNorm1d(half), nn.ReLU(), nn.Linear(half, embedding_size)
        self.transform = nn.Sequential(*layers)
        words = vocabulary_size + (self.mask_word is not None)
        self.text: TextEncoder | TextTower
        if text_tower is None:
            self.text = TextEncoder(words, word_size=word_size, embedding_size=embedding_size, bidirectional=True)
        elif self.mask_word is None:
            self.text = open_text_tower(text_tower, vocabulary_size=words, embedding_size=embedding_size)
        else:
            raise ValueError('augment_words = "mask" adds a <mask> word, which a `text_tower` cannot; leave one out.')
        self.pool_regions, self.pool_words = GPO(), GPO()

    def encode_images(self, images: Images) -> Code:
        images = images if self.image is None else self.image.regions(images)
        real = images.real_here()
        if self.training:
            real = self.augment(torch.ones(images.features.shape[:2], dtype=torch.bool) if real is None else real)
        regions = group_by_group(self._regions, images.groups, images.features, real)
        mask = None if real is None else sent(real, regions.device)
        return Code(l2_normalise(self.pool_regions(regions, mask)))

    def encode_captions(self, captions: Captions) -> Code:
        if self.training:
            captions = self._augmented(captions)
        return Code(l2_normalise(self.pool_words(*self.text.states(captions))))

    def _regions(self, features: Float[Tensor, "images regions features"], real: Mask) -> Fragments:
        """Compute W v + MLP(v) of the real regions, which a mask on the CPU marks, and zero elsewhere."""
        rows, places = features.flatten(0, 1), None
        if real is not None:
            places = sent(true_places(real), features.device)
            rows = rows[places]
        rows = self.project(rows) + self.transform(rows)
        if places is not None:
            rows = rows.new_zeros(features.shape[:2].numel(), rows.shape[1]).index_copy(0, places, rows)
        return rows.view(*features.shape[:2], -1)

    def _augmented(self, captions: Captions) -> Captions:
        """Leave words out of the captions, or replace them. Draws are on the CPU, as lengths are."""
        words, device = captions.words, captions.words.device
        real = ranks(words.shape[1], captions.lengths)
        remaining = self.augment(real)
        if isinstance(self.text, TextTower) and self.text.has_ends:  # the first and last ids are the tokeniser's own
            remaining |= real & ~ranks(words.shape[1], captions.lengths - 1)
            remaining[:, 0] = True
        if self.mask_word is not None:
            chosen, draws = real & ~remaining, torch.rand(real.shape)
            others = torch.randint(self.mask_word, real.shape).masked_fill(draws < MASKED, self.mask_word)
            replaced = chosen & (draws < REPLACED)
            words = torch.where(sent(replaced, device), sent(others.to(words.dtype), device), words)
            remaining |= replaced
        order = (~remaining).to(torch.uint8).argsort(dim=1, stable=True)
        return Captions(words.gather(1, sent(order, device)), remaining.sum(1))


_GPO_TEMPERATURE = 0.1
WAVELENGTH = 10000.0
"""Wavelength of the slowest position code, divided by 2 pi."""


class GPO(nn.Module):
    """The generalised pooling operator: each dimension's values, sorted and weighted by rank, eq. (2) to (5).

        pooled_d = sum_k theta_k max_k(x_1d, ..., x_Nd)        theta = softmax_k(MLP(BiGRU(p_1, ..., p_N)_k))

    max_k is the k-th largest value of an item's N real fragments, and p_k the code of position k. The weights follow
    from N alone, so mean, maximum and everything between can be learnt, and items of one length share them.

    What the paper leaves open is as in the released code: both directions are averaged, the MLP is one layer without
    bias, the temperature is 0.1. As there, unlike eq. (3), positions start at 0: the published weights depend on it.
    """

    def __init__(self, position_size: int = 32, hidden_size: int = 32) -> None:
        super().__init__()
        self.position_size = position_size
        self.recurrence = nn.GRU(position_size, hidden_size, batch_first=True, bidirectional=True)
        self.score = nn.Linear(hidden_size, 1, bias=False)

    def forward(self, fragments: Fragments, mask: Mask) -> Float[Tensor, "items size"]:
        """Pool each item to one vector, whatever values are masked. Without fragments the vector is zero."""
        longest = fragments.shape[1]
        if mask is None:
            weights = self.weights(torch.tensor([longest])).expand(len(fragments), -1)
            values = fragments.sort(dim=1, descending=True).values
        else:
            # Weights for every possible number of fragments: only the device knows which numbers occur.
            weights = self.weights(torch.arange(1, longest + 1))[count(mask) - 1]
            values = fragments.masked_fill(~mask.unsqueeze(2), -torch.inf).sort(dim=1, descending=True).values
            values = zero_masked(values, ranks(longest, mask.sum(1)))
        return torch.bmm(weights.unsqueeze(1), values).squeeze(1)

    def weights(self, sizes: Int[Tensor, " sizes"]) -> Float[Tensor, "sizes fragments"]:
        """Compute theta for each of these numbers of fragments, which are on the CPU; 0 beyond the number."""
        longest = int(sizes.max())
        codes = sent(position_codes(longest, self.position_size).to(self.score.weight.dtype), self.score.weight.device)
        states, _ = run_over(self.recurrence, codes.expand(len(sizes), -1, -1), sizes)
        scores = self.score(states.unflatten(2, (2, -1)).mean(2)).squeeze(2) / _GPO_TEMPERATURE
        return scores.masked_fill(sent(~ranks(longest, sizes), scores.device), -torch.inf).softmax(1)


def position_codes(positions: int, size: int) -> Float[Tensor, "positions size"]:
    """Return sines at even places, cosines at odd ones, eq. (4): w_j = 10000^(-2j / size), positions from 0.

    >>> position_codes(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 1.0000]], dtype=torch.float64)
    """
    frequencies = WAVELENGTH ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(positions).unsqueeze(1) * frequencies
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)


class SizeAugmentation(nn.Dropout):
    """Leave out each fragment with probability p in training, so that GPO sees many lengths (section 3.3)."""

    def forward(self, input: Bool[Tensor, "items fragments"]) -> Bool[Tensor, "items fragments"]:  # noqa: A002
        """Return the mask of the fragments that stay."""
        if not self.training or self.p == 0:
            return input
        remaining = input & (torch.rand(input.shape, device=input.device) >= self.p)
        # An item that would lose all its fragments keeps them.
        return torch.where(remaining.any(1, keepdim=True), remaining, input)
