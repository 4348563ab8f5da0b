"""Captions as ids of a pretrained tokeniser, for text encoders that were trained with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.prepare.tokenisers import TOKENISERS
from aoq.pipeline.prepare.tokenisers.tokeniser import Tokeniser


@dataclass(frozen=True)
class Pieces:
    """A pretrained tokeniser, instead of a vocabulary."""

    tokeniser: Tokeniser

    @classmethod
    def open(cls, name: str) -> Pieces:
        """Open LIBRARY:NAME_OR_PATH, from the hub or a folder.

        Raises:
            ValueError: for another library, or if loading fails.
        """
        library, _, model = name.partition(":")
        if library not in TOKENISERS or not model:
            known = ", ".join(f"{library}:NAME_OR_PATH" for library in TOKENISERS)
            raise ValueError(f"there is no tokeniser {name!r}; known is {known}.")
        return cls(TOKENISERS[library].open(name, model))

    @classmethod
    def load(cls, folder: Path) -> Pieces:
        """Load the files that `save` wrote.

        Raises:
            ValueError: if no tokeniser was saved.
        """
        for kind in TOKENISERS.values():
            if (folder / kind.file).is_file():
                return cls(kind.load(folder))
        files = " and no ".join(kind.file for kind in TOKENISERS.values())
        raise ValueError(f"{folder} keeps no tokeniser: it has no {files}; remove it and make the dataset stage again.")

    def __len__(self) -> int:
        return len(self.tokeniser)

    def save(self, folder: Path) -> None:
        self.tokeniser.save(folder)

    def tokenised(self, captions: Sequence[str]) -> TokenisedCaptions:
        """Tokenise every caption."""
        encoded = self.tokeniser.ids(captions)
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return TokenisedCaptions(np.concatenate(encoded).astype(np.int32), offsets)


def read_words(path: Path) -> Vocabulary | Pieces:
    """Read a vocabulary file, or the folder of a tokeniser."""
    return Pieces.load(path) if path.is_dir() else Vocabulary.load(path)


def tokenised(captions: Sequence[str], words: Vocabulary | Pieces) -> TokenisedCaptions:
    return words.tokenised(captions) if isinstance(words, Pieces) else TokenisedCaptions.build(captions, words)
