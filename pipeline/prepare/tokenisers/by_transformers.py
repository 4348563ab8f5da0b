"""Tokenisers of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading
from aoq.pipeline.prepare.tokenisers.tokeniser import LONGEST, Tokeniser


@dataclass(frozen=True)
class TransformersTokeniser(Tokeniser):
    """Tokenise with special tokens: a caption's last id is one."""

    tokeniser: Any
    file = "tokenizer_config.json"

    @classmethod
    @override
    def open(cls, name: str, model: str) -> TransformersTokeniser:
        auto = import_extra("transformers", "transformers", name).AutoTokenizer
        with loading(name, model):
            return cls(auto.from_pretrained(model))

    @classmethod
    @override
    def load(cls, folder: Path) -> TransformersTokeniser:
        return cls.open(f"transformers:{folder}", str(folder))

    @override
    def save(self, folder: Path) -> None:
        self.tokeniser.save_pretrained(folder)

    @override
    def __len__(self) -> int:
        return len(self.tokeniser)

    @override
    def ids(self, captions: Sequence[str]) -> list[list[int]]:
        longest = min(self.tokeniser.model_max_length, LONGEST)
        encoded: list[list[int]] = self.tokeniser(list(captions), truncation=True, max_length=longest)["input_ids"]
        special = set(self.tokeniser.all_special_ids)
        for line, (caption, ids) in enumerate(zip(captions, encoded, strict=True), start=1):
            if special.issuperset(ids) or ids[-1] not in special:
                raise ValueError(
                    f"caption {line} ({caption!r}) became the ids {ids}; there must be one or more, and then a special "
                    "token: write a word, or choose a tokeniser that ends captions so, as BERT's and SigLIP's do."
                )
        return encoded
