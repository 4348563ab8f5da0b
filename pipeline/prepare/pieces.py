"""Captions as ids of a pretrained tokeniser, for text encoders that were trained with it."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from aoq.models.towers.libraries import TOKENISER, OpenClipSource, find_entry, static_folder, tokeniser_of_transformers
from aoq.pipeline.data.batches import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.extras import import_extra, loading
from aoq.pipeline.reading import parse_json, read_json

logger = logging.getLogger(__name__)

MOST_IDS = 512
"""Most ids of a caption, if the tokeniser itself sets no lower limit."""


class Pieces(ABC):
    """A pretrained tokeniser, instead of a vocabulary. A new kind is a class and a line in `TOKENISERS`."""

    FILE: ClassVar[str]
    """File that only this kind has in a folder that `save` wrote."""

    @staticmethod
    def open(name: str) -> Pieces:
        """Open LIBRARY:NAME_OR_PATH, from the hub or a folder."""
        return find_entry(name, TOKENISERS, "tokeniser")(name)

    @staticmethod
    def load(folder: Path) -> Pieces:
        """Load the files that `save` wrote."""
        for library, kind in TOKENISERS.items():
            if (path := folder / kind.FILE).is_file():
                is_name_saved = kind is OpenClipPieces
                return kind(read_json(path, dict[str, str])["name"] if is_name_saved else f"{library}:{folder}")
        files = " and no ".join(kind.FILE for kind in TOKENISERS.values())
        raise ValueError(f"{folder} has no tokeniser: it has no {files}; remove it and make the dataset stage again.")

    @abstractmethod
    def __init__(self, name: str) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Return the number that all ids lie below."""

    @abstractmethod
    def ids(self, captions: list[str]) -> list[list[int]]:
        """Return the ids of every caption, cut if it is too long; they are empty for a caption without any piece."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write what `load` needs into a new folder."""

    def tokenised(self, captions: Sequence[str]) -> TokenisedCaptions:
        encoded = self.ids(list(captions))
        for line, (caption, ids) in enumerate(zip(captions, encoded, strict=True), start=1):
            if not ids:
                raise ValueError(f"caption {line} ({caption!r}) became no ids; write a word, or remove its line.")
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return TokenisedCaptions(np.concatenate(encoded).astype(np.int32), offsets)


class TransformersPieces(Pieces):
    FILE = "tokenizer_config.json"

    def __init__(self, name: str) -> None:
        self.tokeniser = tokeniser_of_transformers(name)

    def __len__(self) -> int:
        return len(self.tokeniser)

    def ids(self, captions: list[str]) -> list[list[int]]:
        """A caption's last id must be a special token: some text encoders' own vectors are its state."""
        longest = min(self.tokeniser.model_max_length, MOST_IDS)
        encoded: list[list[int]] = self.tokeniser(captions, truncation=True, max_length=longest)["input_ids"]
        special = set(self.tokeniser.all_special_ids)
        for line, (caption, ids) in enumerate(zip(captions, encoded, strict=True), start=1):
            if special.issuperset(ids) or ids[-1] not in special:
                raise ValueError(
                    f"caption {line} ({caption!r}) became the ids {ids}; there must be one or more, and then a special "
                    "token: write a word, or choose a tokeniser that ends captions with one, as BERT's and SigLIP's do."
                )
        return encoded

    def save(self, folder: Path) -> None:
        self.tokeniser.save_pretrained(folder)


class OpenClipPieces(Pieces):
    """CLIP's own tokeniser; only the name of its pair is saved."""

    FILE = "open_clip.json"

    def __init__(self, name: str) -> None:
        pair = OpenClipSource.open(name)
        self.tokeniser = pair.tokeniser()
        if not isinstance(self.tokeniser, import_extra("open_clip", "open-clip", name).SimpleTokenizer):
            raise ValueError(f"the tokeniser of {name} is not CLIP's; open such a pair as transformers:NAME_OR_PATH.")
        self.name = "open_clip:" + "/".join(filter(None, [pair.architecture, pair.tag]))

    def __len__(self) -> int:
        return int(self.tokeniser.vocab_size)

    def ids(self, captions: list[str]) -> list[list[int]]:
        start, end = self.tokeniser.sot_token_id, self.tokeniser.eot_token_id
        inside = [self.tokeniser.encode(caption)[: self.tokeniser.context_length - 2] for caption in captions]
        return [[start, *ids, end] if ids else [] for ids in inside]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / self.FILE).write_text(json.dumps({"name": self.name}) + "\n", encoding="utf-8")


class StaticPieces(Pieces):
    """The tokeniser of static vectors."""

    FILE = TOKENISER

    def __init__(self, name: str) -> None:
        with loading(name, name.partition(":")[2]):
            library = import_extra("tokenizers", "transformers", "a tokeniser of static vectors")
            self.cutter = library.Tokenizer.from_file(str(static_folder(name) / TOKENISER))
        self.cutter.no_padding()
        self.cutter.enable_truncation(MOST_IDS)

    def __len__(self) -> int:
        return 1 + int(max(self.cutter.get_vocab().values()))

    def ids(self, captions: list[str]) -> list[list[int]]:
        """Add no special tokens, which would distort a mean; drop unknown ids unless a caption has no others."""
        model = parse_json(self.cutter.to_str(), dict[str, Any])["model"]
        token = model.get("unk_token")
        unknown = model.get("unk_id") if token is None else self.cutter.token_to_id(token)
        encoded = [one.ids for one in self.cutter.encode_batch(captions, add_special_tokens=False)]
        known = [[one for one in ids if one != unknown] for ids in encoded]
        if lines := [line for line, ids in enumerate(known, start=1) if not ids and encoded[line - 1]]:
            message = "%d of %d captions have no word that the static vectors know (first lines %s)"
            logger.warning(message, len(lines), len(captions), lines[:5])
        return [words or ids[:1] for words, ids in zip(known, encoded, strict=True)]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.cutter.save(str(folder / TOKENISER))


TOKENISERS: dict[str, type[Pieces]] = {
    "transformers": TransformersPieces,
    "open_clip": OpenClipPieces,
    "static": StaticPieces,
}


def read_words(path: Path) -> Vocabulary | Pieces:
    """Read a vocabulary file, or the folder of a tokeniser."""
    return Pieces.load(path) if path.is_dir() else Vocabulary.load(path)


def tokenised(captions: Sequence[str], words: Vocabulary | Pieces) -> TokenisedCaptions:
    return words.tokenised(captions) if isinstance(words, Pieces) else TokenisedCaptions.build(captions, words)
