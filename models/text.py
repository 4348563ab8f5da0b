"""The GRU text encoder that VSE++, VSRN and SCAN share."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from aoq.models.base import Captions


class TextEncoder(nn.Module):
    """Word embeddings, then a GRU over each caption's own length; two directions are averaged.

    Captions come in any order of lengths, and padding never enters the GRU. `dropout` is that of word embeddings.
    """

    def __init__(
        self, vocabulary_size: int, *, word_size: int, embedding_size: int, bidirectional: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary_size, word_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.recurrence = nn.GRU(word_size, embedding_size, batch_first=True, bidirectional=bidirectional)

    def last(self, captions: Captions) -> Float[Tensor, "captions size"]:
        """Return the state at the last word (in the backward direction, at the first)."""
        _, states = self._read(captions, _packed_places(captions))
        return states.mean(0) if self.recurrence.bidirectional else states[0]

    def states(self, captions: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        """Return the state at every word, zero at padding, and the mask of real words."""
        places = _packed_places(captions)
        states = self._read(captions, places)[0].data
        if self.recurrence.bidirectional:
            states = torch.add(*states.chunk(2, dim=1)) / 2
        mask = (torch.arange(len(places.batch_sizes)) < captions.lengths.cpu().unsqueeze(1)).to(states.device)
        padded = states.new_zeros(mask.numel(), states.shape[1]).index_copy(0, places.data, states)
        return padded.view(*mask.shape, -1), mask

    def _read(self, captions: Captions, places: PackedSequence) -> tuple[PackedSequence, Tensor]:
        tokens = captions.words[:, : len(places.batch_sizes)].flatten()[places.data]
        return self.recurrence(PackedSequence(self.dropout(self.embedding(tokens)), *places[1:]))


def _packed_places(captions: Captions) -> PackedSequence:
    """Place of each packed word in the padded captions. Packing places is cheap, packing vectors is not."""
    lengths = captions.lengths.cpu()
    longest = int(lengths.max())
    grid = torch.arange(len(lengths) * longest, device=captions.words.device).view(-1, longest)
    return pack_padded_sequence(grid, lengths, batch_first=True, enforce_sorted=False)
