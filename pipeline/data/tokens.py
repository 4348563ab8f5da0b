"""Captions as word ids, tokenised once and stored as one flat array."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Int, Int32, Int64

from aoq.pipeline.data.vocabulary import PAD, SPECIAL_WORDS, Vocabulary, is_punctuation, tokenise
from aoq.pipeline.reading import read_arrays, reading

logger = logging.getLogger(__name__)

TOKENISE_AGAIN = "remove it and tokenise again"


@dataclass(frozen=True)
class TokenisedCaptions:
    """Caption c is `words[offsets[c]:offsets[c + 1]]`, `<start>` and `<end>` included; each has a word.

    Tokenisers of transformers put their own special tokens there; SigLIP's only the last; those of static vectors none.
    """

    words: Int32[np.ndarray, " tokens"]
    offsets: Int64[np.ndarray, " captions_and_one"]

    def __post_init__(self) -> None:
        if self.words.ndim != 1 or self.offsets.ndim != 1 or self.words.min(initial=0) < 0:
            raise ValueError("words are ids from 0, one after the other, and offsets where each caption begins.")
        if self.offsets[:1].tolist() != [0] or self.offsets[-1] != len(self.words):
            raise ValueError(f"offsets must run from 0 to the number of words, {len(self.words)}.")
        if len(self) and self.lengths.min() < 1:
            raise ValueError(f"caption {int(self.lengths.argmin())} has no word.")

    @classmethod
    def build(cls, captions: Sequence[str], vocabulary: Vocabulary) -> TokenisedCaptions:
        """Tokenise and encode every caption; warn of captions without a known word, punctuation aside."""
        words, offsets, unknown = array("i"), array("q", [0]), []
        known = {i for word, i in vocabulary.index.items() if word not in SPECIAL_WORDS and not is_punctuation(word)}
        for line, caption in enumerate(captions, start=1):
            ids = vocabulary.encode(tokenise(caption))
            if len(ids) == 2:
                raise ValueError(f"caption {line} ({caption!r}) has no word; write one, or remove its line.")
            if known.isdisjoint(ids):
                unknown.append(line)
            words.extend(ids)
            offsets.append(len(words))
        if unknown:
            message = "%d of %d captions hold no word of the vocabulary (first lines %s)"
            logger.warning(message, len(unknown), len(captions), unknown[:5])
        return cls(np.array(words, dtype=np.int32), np.array(offsets, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64[np.ndarray, " captions"]:
        return np.diff(self.offsets)

    def sequences(self) -> list[bytes]:
        """Return each caption's word ids as bytes, to be compared."""
        return [self.words[start:end].tobytes() for start, end in pairwise(self.offsets.tolist())]

    def gather(
        self, rows: Int[np.ndarray, " batch"]
    ) -> tuple[Int64[np.ndarray, "batch words"], Int64[np.ndarray, " batch"]]:
        """Return the word ids of captions, 0-padded to the longest, and their lengths."""
        # Tables pad with -1, which must not come back as the last caption.
        if rows.size and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"caption rows must lie in 0..{len(self) - 1}; got {rows.min()}..{rows.max()}.")
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        columns = np.arange(lengths.max(initial=0))
        is_word = columns < lengths[:, None]
        ids = np.full(is_word.shape, PAD, dtype=np.int64)
        ids[is_word] = self.words[(starts[:, None] + columns)[is_word]]
        return ids, lengths

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, words=self.words, offsets=self.offsets)

    @classmethod
    def load(cls, path: Path) -> TokenisedCaptions:
        words, offsets = read_arrays(path, "words", "offsets", remedy=TOKENISE_AGAIN).values()
        with reading(path, "a file of tokenised captions", TOKENISE_AGAIN):
            if (words.dtype, offsets.dtype) != (np.dtype(np.int32), np.dtype(np.int64)):
                raise ValueError(f"words are {words.dtype} and offsets {offsets.dtype}")
            return cls(words, offsets)
