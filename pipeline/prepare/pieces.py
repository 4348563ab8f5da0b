"""Captions as ids of a pretrained tokeniser, for text encoders that were trained with it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aoq.models.towers.libraries import TOKENISER, OpenClipSource, static_folder, tokeniser_of_transformers
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.extras import import_extra, loading
from aoq.pipeline.reading import parse_json, read_json

logger = logging.getLogger(__name__)

LONGEST = 512
"""Most ids of a caption, if the tokeniser itself sets no lower limit."""
Ids = list[list[int]]


class Library(NamedTuple):
    """How a library's tokenisers are opened by name, saved in a folder, and used."""

    open: Callable[[str], Any]
    file: str
    """File that only this library has in a folder that `save` wrote."""
    save: Callable[[Any, Path], object]
    size: Callable[[Any], int]
    """Returns the number that all ids lie below."""
    ids: Callable[[Any, list[str]], Ids]
    """Returns the ids of every caption, cut if it is too long; they are empty for a caption without any piece."""


@dataclass(frozen=True)
class Pieces:
    """A pretrained tokeniser, instead of a vocabulary."""

    library: Library
    tokeniser: Any

    @classmethod
    def open(cls, name: str) -> Pieces:
        """Open LIBRARY:NAME_OR_PATH, from the hub or a folder.

        Raises:
            ValueError: for another library, or if loading fails.
        """
        library, _, model = name.partition(":")
        if library not in TOKENISERS or not model:
            known = ", ".join(f"{library}:NAME_OR_PATH" for library in TOKENISERS)
            raise ValueError(f"there is no tokeniser {name!r}; known are {known}.")
        return cls(TOKENISERS[library], TOKENISERS[library].open(name))

    @classmethod
    def load(cls, folder: Path) -> Pieces:
        """Load the files that `save` wrote.

        Raises:
            ValueError: if no tokeniser was saved.
        """
        for name, library in TOKENISERS.items():
            if (folder / library.file).is_file():
                is_name_saved = library.file == OPEN_CLIP_FILE
                return cls.open(_read_name(folder) if is_name_saved else f"{name}:{folder}")
        files = " and no ".join(library.file for library in TOKENISERS.values())
        raise ValueError(f"{folder} has no tokeniser: it has no {files}; remove it and make the dataset stage again.")

    def __len__(self) -> int:
        return self.library.size(self.tokeniser)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.library.save(self.tokeniser, folder)

    def tokenised(self, captions: Sequence[str]) -> TokenisedCaptions:
        """Tokenise every caption.

        Raises:
            ValueError: for a caption without any piece.
        """
        encoded = self.library.ids(self.tokeniser, list(captions))
        for line, (caption, ids) in enumerate(zip(captions, encoded, strict=True), start=1):
            if not ids:
                raise ValueError(f"caption {line} ({caption!r}) became no ids; write a word, or remove its line.")
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return TokenisedCaptions(np.concatenate(encoded).astype(np.int32), offsets)


def _transformers_ids(tokeniser: Any, captions: list[str]) -> Ids:
    """A caption's last id must be a special token: some text encoders' own vectors are its state."""
    longest = min(tokeniser.model_max_length, LONGEST)
    encoded: Ids = tokeniser(captions, truncation=True, max_length=longest)["input_ids"]
    special = set(tokeniser.all_special_ids)
    for line, (caption, ids) in enumerate(zip(captions, encoded, strict=True), start=1):
        if special.issuperset(ids) or ids[-1] not in special:
            raise ValueError(
                f"caption {line} ({caption!r}) became the ids {ids}; there must be one or more, and then a special "
                "token: write a word, or choose a tokeniser that ends captions with one, as BERT's and SigLIP's do."
            )
    return encoded


OPEN_CLIP_FILE = "open_clip.json"


class OpenClipTokeniser(NamedTuple):
    """CLIP's own tokeniser, and the name of its pair, which is all that is saved."""

    name: str
    tokeniser: Any

    @classmethod
    def open(cls, name: str) -> OpenClipTokeniser:
        pair = OpenClipSource.open(name)
        tokeniser = pair.tokeniser()
        if not isinstance(tokeniser, import_extra("open_clip", "open-clip", name).SimpleTokenizer):
            raise ValueError(f"the tokeniser of {name} is not CLIP's; open such a pair as transformers:NAME_OR_PATH.")
        model = pair.architecture if pair.tag is None else f"{pair.architecture}/{pair.tag}"
        return cls(f"open_clip:{model}", tokeniser)

    def save(self, folder: Path) -> None:
        (folder / OPEN_CLIP_FILE).write_text(json.dumps({"name": self.name}) + "\n", encoding="utf-8")

    def size(self) -> int:
        return int(self.tokeniser.vocab_size)

    def ids(self, captions: list[str]) -> Ids:
        start, end = self.tokeniser.sot_token_id, self.tokeniser.eot_token_id
        inside = [self.tokeniser.encode(caption)[: self.tokeniser.context_length - 2] for caption in captions]
        return [[start, *ids, end] if ids else [] for ids in inside]


def _read_name(folder: Path) -> str:
    return read_json(folder / OPEN_CLIP_FILE, dict[str, str])["name"]


def _open_static(name: str) -> Any:
    with loading(name, name.partition(":")[2]):
        library = import_extra("tokenizers", "transformers", "a tokeniser of static vectors")
        cutter = library.Tokenizer.from_file(str(static_folder(name) / TOKENISER))
    cutter.no_padding()
    cutter.enable_truncation(LONGEST)
    return cutter


def _static_ids(cutter: Any, captions: list[str]) -> Ids:
    """Add no special tokens, which would distort a mean; drop unknown ids unless a caption has no others."""
    model = parse_json(cutter.to_str(), dict[str, Any])["model"]
    token = model.get("unk_token")
    unknown = model.get("unk_id") if token is None else cutter.token_to_id(token)
    encoded = [one.ids for one in cutter.encode_batch(captions, add_special_tokens=False)]
    known = [[one for one in ids if one != unknown] for ids in encoded]
    if lines := [line for line, ids in enumerate(known, start=1) if not ids and encoded[line - 1]]:
        message = "%d of %d captions have no word that the static vectors know (first lines %s)"
        logger.warning(message, len(lines), len(captions), lines[:5])
    return [kept or ids[:1] for kept, ids in zip(known, encoded, strict=True)]


TOKENISERS = {
    "transformers": Library(
        tokeniser_of_transformers,
        "tokenizer_config.json",
        lambda tokeniser, folder: tokeniser.save_pretrained(folder),
        len,
        _transformers_ids,
    ),
    "open_clip": Library(
        OpenClipTokeniser.open, OPEN_CLIP_FILE, OpenClipTokeniser.save, OpenClipTokeniser.size, OpenClipTokeniser.ids
    ),
    "static": Library(
        _open_static,
        TOKENISER,
        lambda cutter, folder: cutter.save(str(folder / TOKENISER)),
        lambda cutter: 1 + int(max(cutter.get_vocab().values())),
        _static_ids,
    ),
}


def read_words(path: Path) -> Vocabulary | Pieces:
    """Read a vocabulary file, or the folder of a tokeniser."""
    return Pieces.load(path) if path.is_dir() else Vocabulary.load(path)


def tokenised(captions: Sequence[str], words: Vocabulary | Pieces) -> TokenisedCaptions:
    return words.tokenised(captions) if isinstance(words, Pieces) else TokenisedCaptions.build(captions, words)
