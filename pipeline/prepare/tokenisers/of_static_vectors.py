"""The tokeniser beside static vectors: a `tokenizer.json` of Hugging Face's tokenizers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from aoq.models.towers.static_vectors import TOKENISER, static_folder
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading
from aoq.pipeline.prepare.tokenisers.tokeniser import LONGEST, Tokeniser
from aoq.pipeline.reading import parse_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StaticTokeniser(Tokeniser):
    """Cut text without special tokens, which mean nothing in a mean; drop unknown tokens where others remain."""

    cutter: Any
    unknown: int | None
    file = TOKENISER

    @classmethod
    @override
    def open(cls, name: str, model: str) -> StaticTokeniser:
        with loading(name, model):
            return cls._read(static_folder(name) / TOKENISER)

    @classmethod
    @override
    def load(cls, folder: Path) -> StaticTokeniser:
        with loading(f"static:{folder}", str(folder)):
            return cls._read(folder / TOKENISER)

    @classmethod
    def _read(cls, file: Path) -> StaticTokeniser:
        library = import_extra("tokenizers", "transformers", "a tokeniser of static vectors")
        cutter = library.Tokenizer.from_file(str(file))
        cutter.no_padding()
        cutter.enable_truncation(LONGEST)
        return cls(cutter, _unknown(cutter))

    @override
    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.cutter.save(str(folder / TOKENISER))

    @override
    def __len__(self) -> int:
        return 1 + int(max(self.cutter.get_vocab().values()))

    @override
    def ids(self, captions: Sequence[str]) -> list[list[int]]:
        encoded = [one.ids for one in self.cutter.encode_batch(list(captions), add_special_tokens=False)]
        unknown = []
        for line, (caption, ids) in enumerate(zip(captions, encoded, strict=True), start=1):
            if not ids:
                raise ValueError(f"caption {line} ({caption!r}) became no ids; write a word, or remove its line.")
            known = [one for one in ids if one != self.unknown]
            if not known:
                unknown.append(line)
            encoded[line - 1] = known or ids[:1]
        if unknown:
            said = "%d of %d captions hold no word that the static vectors know (first lines %s)"
            logger.warning(said, len(unknown), len(captions), unknown[:5])
        return encoded


def _unknown(cutter: Any) -> int | None:
    """The id of what the tokeniser does not know, if it has one."""
    model = parse_json(cutter.to_str(), dict[str, Any])["model"]
    if model.get("unk_token") is not None:
        found: int | None = cutter.token_to_id(model["unk_token"])
        return found
    unknown: int | None = model.get("unk_id")  # Unigram's
    return unknown
