"""VSRN: Visual Semantic Reasoning for Image-Text Matching (Li et al., ICCV 2019)."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.models.base import Captions, Code, EmbeddingModel, Fraction, Images, Length, Size, Weight
from aoq.models.layers import (
    Fragments,
    Mask,
    Projection,
    TextEncoder,
    compact,
    count,
    group_by_group,
    l2_normalise,
    zero_masked,
)
from aoq.models.packing import ranks, run_over, sent, true_places


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
            intended.
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


_Counts = Int[Tensor, " items"] | None


class Captioner(nn.Module):
    """Describes an image word by word; each step is fed the true previous word and attends with the last state."""

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        hidden_size: int,
        word_size: int,
        max_length: int,
        dropout: float,
        bidirectional: bool,
    ) -> None:
        super().__init__()
        state_size = hidden_size * (2 if bidirectional else 1)
        self.max_length = max_length
        self.dropout = nn.Dropout(dropout)
        self.project = nn.Linear(feature_size, hidden_size)
        self.recurrence = nn.GRU(hidden_size, hidden_size, batch_first=True, bidirectional=bidirectional)
        self.embedding = nn.Embedding(vocabulary_size, word_size)
        self.attend = nn.Linear(2 * state_size, state_size)
        self.score = nn.Linear(state_size, 1, bias=False)
        self.cell = nn.GRUCell(word_size + state_size, state_size)
        self.predict = nn.Linear(state_size, vocabulary_size)
        nn.init.xavier_normal_(self.project.weight)
        nn.init.xavier_normal_(self.predict.weight)

    def forward(self, regions: Fragments, counts: _Counts, captions: Captions) -> Float[Tensor, ""]:
        """Compute the negative log-likelihood of each image's caption, summed over words, averaged over images.

        `counts` are the real regions of each image, on the CPU; they come first.
        """
        labels, counted = caption_labels(captions, self.max_length)
        states = self.decode(regions, counts, labels[:, :-1]).flatten(0, 1)
        places = sent(true_places(counted), states.device)
        loss = F.cross_entropy(self.predict(states[places]), labels[:, 1:].flatten()[places], reduction="sum")
        return loss / len(labels)

    def decode(
        self, regions: Fragments, counts: _Counts, words: Int[Tensor, "items steps"]
    ) -> Float[Tensor, "items steps state"]:
        """Compute the decoder's state after each given word.

        e_j = w_2 tanh(W_1 [h_j ; s]), context = softmax(e) h, s <- GRU([word ; context], s). W_1 and the
        GRU's input weights are split, so that regions and words are multiplied once, not at every step.
        """
        memory, last = run_over(self.recurrence, self.dropout(self.project(regions)), counts)
        state = last.transpose(0, 1).flatten(1)
        mask = None if counts is None else sent(ranks(memory.shape[1], counts), memory.device)
        size, word_size = state.shape[1], self.embedding.embedding_dim
        keys = F.linear(memory, self.attend.weight[:, :size], self.attend.bias)
        embedded = self.dropout(self.embedding(words))
        word_gates = F.linear(embedded, self.cell.weight_ih[:, :word_size], self.cell.bias_ih)
        context_weight = self.cell.weight_ih[:, word_size:]
        state_weight = torch.cat([self.attend.weight[:, size:], self.cell.weight_hh])
        state_bias = F.pad(self.cell.bias_hh, (size, 0))
        states = []
        for word_gate in word_gates.unbind(1):
            from_state = F.linear(state, state_weight, state_bias)
            query, state_gate = from_state[:, :size], from_state[:, size:]
            energy = self.score(torch.tanh(keys + query.unsqueeze(1))).squeeze(-1)
            energy = energy if mask is None else energy.masked_fill(~mask, torch.finfo(energy.dtype).min)
            context = torch.bmm(energy.softmax(1).unsqueeze(1), memory).squeeze(1)
            gate = word_gate + F.linear(self.dropout(context), context_weight)
            reset, update = (gate[:, : 2 * size] + state_gate[:, : 2 * size]).sigmoid().chunk(2, dim=1)
            candidate = torch.tanh(gate[:, 2 * size :] + reset * state_gate[:, 2 * size :])
            state = torch.lerp(candidate, state, update)
            states.append(state)
        return torch.stack(states, dim=1)


def caption_labels(
    captions: Captions, max_length: int
) -> tuple[Int[Tensor, "captions labels"], Bool[Tensor, "captions labels-1"]]:
    """Return the words to feed and predict, and a mask of predictions that count: each word, one padding after <end>.

    A caption longer than `max_length` is cut, and its last word becomes <end>. The longest caption sets the number of
    steps. The mask is on the CPU.

    >>> words = torch.tensor([[1, 7, 8, 2], [1, 2, 0, 0]])
    >>> caption_labels(Captions(words, torch.tensor([4, 2])), 60)
    (tensor([[1, 7, 8, 2, 0], [1, 2, 0, 0, 0]]), tensor([[ True,  True,  True,  True], [ True,  True, False, False]]))
    """
    words, lengths = captions.words, captions.lengths
    steps = max(1, min(int(lengths.max()), max_length - 1))
    labels = F.pad(words, (0, max(0, steps + 1 - words.shape[1])))[:, : steps + 1]
    real = ranks(steps + 1, lengths)
    cut = (lengths >= max_length).unsqueeze(1) & (torch.arange(steps + 1) == max_length - 1)
    end = words.gather(1, sent(lengths.unsqueeze(1) - 1, words.device))
    labels = labels.masked_fill(sent(~real, words.device), 0)
    return torch.where(sent(cut, words.device), end, labels), real[:, :-1]
