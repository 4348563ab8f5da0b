"""VSRN's captioner: S2VT with attention (Venugopalan et al., ICCV 2015) over the reasoned regions."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.models.base import Captions
from aoq.models.packing import ranks, run_over, sent, true_places
from aoq.models.regions import Fragments

Counts = Int[Tensor, " items"] | None


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

    def forward(self, regions: Fragments, counts: Counts, captions: Captions) -> Float[Tensor, ""]:
        """Compute the negative log-likelihood of each image's caption, summed over words, averaged over images.

        `counts` are the real regions of each image, on the CPU; they come first.
        """
        labels, counted = caption_labels(captions, self.max_length)
        states = self.decode(regions, counts, labels[:, :-1]).flatten(0, 1)
        places = sent(true_places(counted), states.device)
        loss = F.cross_entropy(self.predict(states[places]), labels[:, 1:].flatten()[places], reduction="sum")
        return loss / len(labels)

    def decode(
        self, regions: Fragments, counts: Counts, words: Int[Tensor, "items steps"]
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
        word_gates = F.linear(
            self.dropout(self.embedding(words)), self.cell.weight_ih[:, :word_size], self.cell.bias_ih
        )
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

    A caption longer than `max_length` is cut, and its last word becomes <end>. Steps are only as many as the longest
    caption needs. The mask is on the CPU.

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
