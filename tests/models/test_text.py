"""The text encoder against a GRU that reads one caption at a time."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from aoq.models.base import Captions
from aoq.models.text import TextEncoder

LENGTHS = [(4, 1, 7, 2, 4), (1, 1, 1), (3,), (1,), (2, 9, 9, 5, 1, 6, 6), (3, 3)]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_text_encoder_equals_one_caption_at_a_time(lengths, bidirectional, generator):
    """Unsorted and with more padding than needed."""
    encoder = TextEncoder(20, word_size=3, embedding_size=5, bidirectional=bidirectional)
    words = torch.randint(1, 20, (len(lengths), max(lengths) + 2), generator=generator)
    captions = Captions(words, torch.tensor(lengths))
    states, mask = encoder.states(captions)
    last = encoder.last(captions)
    assert mask.sum(1).tolist() == list(lengths)
    assert states.shape[1] == max(lengths)
    assert not states[~mask].any()
    for row, length in enumerate(lengths):
        alone, final = encoder.recurrence(encoder.embedding(words[row : row + 1, :length]))
        assert_close(states[row, :length], alone[0].unflatten(1, (-1, 5)).mean(1), rtol=1e-5, atol=1e-6)
        assert_close(last[row], final[:, 0].mean(0), rtol=1e-5, atol=1e-6)
