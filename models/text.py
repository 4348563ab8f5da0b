"""The GRU text encoder that VSE++, VSRN and SCAN share."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from aoq.models.base import Captions
from aoq.models.packing import Packing


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
        _, _, states = self._read(captions)
        return states.mean(0) if self.recurrence.bidirectional else states[0]

    def states(self, captions: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        """Return the state at every word, zero at padding, and the mask of real words."""
        packing, states, _ = self._read(captions)
        if self.recurrence.bidirectional:
            states = torch.add(*states.chunk(2, dim=1)) / 2
        words, mask = captions.real()
        return packing.padded(states, words.shape[1]), mask

    def _read(self, captions: Captions) -> tuple[Packing, Tensor, Tensor]:
        longest = int(captions.lengths.max())
        packing = Packing.build(captions.lengths, longest, captions.words.device)
        tokens = captions.words[:, :longest].flatten()[packing.places]
        return packing, *packing.run(self.recurrence, self.dropout(self.embedding(tokens)))
