"""CLIP's tokeniser, as open_clip has it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from aoq.models.towers.open_clip_pair import OpenClipPair
from aoq.pipeline.prepare.tokenisers.tokeniser import Tokeniser
from aoq.pipeline.reading import read_json


@dataclass(frozen=True)
class OpenClipTokeniser(Tokeniser):
    """Tokenise with marks for the start and the end of a text. Saved is the name of its pair alone."""

    name: str
    tokeniser: Any
    file = "open_clip.json"

    @classmethod
    @override
    def open(cls, name: str, model: str) -> OpenClipTokeniser:
        pair = OpenClipPair.open(name)
        where = pair.architecture if pair.tag is None else f"{pair.architecture}/{pair.tag}"
        return cls(f"open_clip:{where}", pair.tokeniser())

    @classmethod
    @override
    def load(cls, folder: Path) -> OpenClipTokeniser:
        name = read_json(folder / cls.file, dict[str, str])["name"]
        return cls.open(name, name.partition(":")[2])

    @override
    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.file).write_text(json.dumps({"name": self.name}) + "\n", encoding="utf-8")

    @override
    def __len__(self) -> int:
        return int(self.tokeniser.vocab_size)

    @override
    def ids(self, captions: Sequence[str]) -> list[list[int]]:
        start, end = self.tokeniser.sot_token_id, self.tokeniser.eot_token_id
        longest = self.tokeniser.context_length - 2
        encoded = []
        for line, caption in enumerate(captions, start=1):
            inside = self.tokeniser.encode(caption)[:longest]
            if not inside:
                raise ValueError(f"caption {line} ({caption!r}) became no ids; write a word, or remove its line.")
            encoded.append([start, *inside, end])
        return encoded
