"""Captions as word ids, tokenised once and stored as one flat array; the captions of each step, and their tensors."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int, Int32, Int64

from aoq.models.base import Captions, Images
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.pixels import PhotographPixels
from aoq.pipeline.data.vocabulary import PAD, SPECIAL_WORDS, Vocabulary, is_punctuation, tokenise
from aoq.pipeline.reading import read_arrays, reading

logger = logging.getLogger(__name__)

DRAWING = 2
"""Separates the random numbers of steps from those of orders and of augmentation."""
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


@dataclass(frozen=True)
class PairData:
    """A split with its captions tokenised; `max_regions` limits the regions of each image (`Split.count_regions`).

    With `pixels`, its images are photographs instead of region features.
    """

    split: Split
    tokens: TokenisedCaptions
    max_regions: int | None = None
    pixels: PhotographPixels | None = None

    @property
    def regions(self) -> int:
        return self.split.count_regions(self.max_regions)

    def augmented(self, ways: tuple[str, ...] | None, seed: int, epoch: int) -> PairData:
        """Return the split as one epoch of a training sees it."""
        if ways is None or self.pixels is None:
            return self
        return replace(self, pixels=self.pixels.augmented(ways, seed, epoch))

    def images(self, rows: Int[np.ndarray, " batch"]) -> Images:
        """Read images as they are stored; `Images.to` makes float32 of float16."""
        if self.pixels is not None:
            return Images(self.pixels.read(rows))

        def read(array: np.ndarray, dtype: type | None = None) -> torch.Tensor:
            return torch.from_numpy(np.asarray(array[rows, : self.regions], dtype=dtype))

        split = self.split
        return Images(
            read(split.features),
            None if split.mask is None else read(split.mask),
            None if split.boxes is None else read(split.boxes, np.float32),
        )

    def captions(self, rows: Int[np.ndarray, " batch"]) -> Captions:
        words, lengths = self.tokens.gather(rows)
        return Captions(torch.from_numpy(words), torch.from_numpy(lengths))


def steps_per_epoch(captions: int, batch_size: int) -> int:
    """Count the steps that visit every caption; a last batch of a single pair, which has no negative, is left out."""
    full, rest = divmod(captions, batch_size)
    return full + (rest > 1)


@lru_cache(maxsize=4)  # each step needs it
def epoch_order(captions: int, *, seed: int, epoch: int) -> Int32[np.ndarray, " captions"]:
    """Return the order of the captions in an epoch, a function of (seed, epoch) alone, so that it can be resumed."""
    order = np.random.default_rng([seed, epoch]).permutation(captions).astype(np.int32)
    order.flags.writeable = False
    return order


def step_rng(*, seed: int, epoch: int, step: int) -> np.random.Generator:
    """Make the random generator of a step, a function of (seed, epoch, step) alone."""
    return np.random.default_rng([seed, epoch, step, DRAWING])  # the last of a seed may not be 0, which numpy ignores
