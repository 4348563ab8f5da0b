"""Captions as ids of a pretrained tokeniser, for text encoders that were trained with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading

LONGEST = 512
"""Ids of a caption, at most, unless the tokeniser itself has a lower limit."""


@dataclass(frozen=True)
class Pieces:
    """A tokeniser of transformers, instead of a vocabulary; a caption's last id is a special token."""

    tokeniser: Any

    @classmethod
    def open(cls, name: str) -> Pieces:
        """Open `transformers:NAME_OR_PATH`, from the hub or a folder.

        Raises:
            ValueError: for another library, or if loading fails.
        """
        library, _, model = name.partition(":")
        if library != "transformers" or not model:
            raise ValueError(f"there is no tokeniser {name!r}; known is transformers:NAME_OR_PATH.")
        auto = import_extra("transformers", "transformers", name).AutoTokenizer
        with loading(name, model):
            return cls(auto.from_pretrained(model))

    @classmethod
    def load(cls, folder: Path) -> Pieces:
        """Load the files that `save` wrote."""
        return cls.open(f"transformers:{folder}")

    def __len__(self) -> int:
        return len(self.tokeniser)

    def save(self, folder: Path) -> None:
        self.tokeniser.save_pretrained(folder)

    def tokenised(self, captions: Sequence[str]) -> TokenisedCaptions:
        """Tokenise every caption, with special tokens, and cut it if it is too long."""
        longest = min(self.tokeniser.model_max_length, LONGEST)
        encoded = self.tokeniser(list(captions), truncation=True, max_length=longest)["input_ids"]
        special = set(self.tokeniser.all_special_ids)
        for line, (caption, ids) in enumerate(zip(captions, encoded, strict=True), start=1):
            if special.issuperset(ids) or ids[-1] not in special:
                raise ValueError(
                    f"caption {line} ({caption!r}) became the ids {ids}; there must be one or more, and then a special "
                    "token: write a word, or choose a tokeniser that ends captions so, as BERT's and SigLIP's do."
                )
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return TokenisedCaptions(np.concatenate(encoded).astype(np.int32), offsets)


def read_words(path: Path) -> Vocabulary | Pieces:
    """Read a vocabulary file, or the folder of a tokeniser."""
    return Pieces.load(path) if path.is_dir() else Vocabulary.load(path)


def tokenised(captions: Sequence[str], words: Vocabulary | Pieces) -> TokenisedCaptions:
    return words.tokenised(captions) if isinstance(words, Pieces) else TokenisedCaptions.build(captions, words)
