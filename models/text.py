"""The GRU text encoder that VSE++, VSRN and SCAN share."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from models.base import Captions


class TextEncoder(nn.Module):
    """Word embeddings, then a GRU over each caption's own length; two directions are averaged.

    Captions come in any order of lengths, and padding never enters the GRU.
    """

    def __init__(self, vocabulary_size: int, *, word_size: int, embedding_size: int, bidirectional: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, word_size)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.recurrence = nn.GRU(word_size, embedding_size, batch_first=True, bidirectional=bidirectional)

    def last(self, captions: Captions) -> Float[Tensor, "captions size"]:
        """The state at the last word (of the backward direction: at the first)."""
        _, states = self.recurrence(self._pack(captions))
        return states.mean(0) if self.recurrence.bidirectional else states[0]

    def states(self, captions: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        """The state at every word, zero at padding, and the mask of real words."""
        packed, _ = self.recurrence(self._pack(captions))
        states, lengths = pad_packed_sequence(packed, batch_first=True)
        if self.recurrence.bidirectional:
            states = torch.stack(states.chunk(2, dim=-1)).mean(0)
        return states, (torch.arange(states.shape[1]) < lengths.unsqueeze(1)).to(states.device)

    def _pack(self, captions: Captions) -> PackedSequence:
        words = self.embedding(captions.words)
        return pack_padded_sequence(words, captions.lengths.cpu(), batch_first=True, enforce_sorted=False)
