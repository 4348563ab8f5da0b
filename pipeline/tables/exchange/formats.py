"""The formats by name, and what each needs to know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aoq.pipeline.tables.exchange.jsonlines import write_flagembedding, write_tevatron
from aoq.pipeline.tables.exchange.official import write_official
from aoq.pipeline.tables.exchange.outgoing import Outgoing
from aoq.pipeline.tables.exchange.pylate import write_pylate
from aoq.pipeline.tables.exchange.sentence_transformers import (
    write_labeled_lists,
    write_labeled_pairs,
    write_triplets,
    write_tuples,
)
from aoq.pipeline.tables.exchange.trec import write_run
from aoq.pipeline.tables.exchange.written import Written


@dataclass(frozen=True)
class Format:
    """`write` makes the file, or the folder, of one direction; of both in turn if `both_directions`."""

    write: Callable[[Outgoing, Path], Written]
    has_texts: bool = True
    has_positives: bool = True
    scores: Literal["optional", "always", "never", "of negatives"] = "never"
    both_directions: bool = False


FORMATS: dict[str, Format] = {
    "triplet": Format(write_triplets, scores="optional"),
    "n-tuple": Format(write_tuples, scores="optional"),
    "labeled-pair": Format(write_labeled_pairs, scores="optional"),
    "labeled-list": Format(write_labeled_lists, scores="optional"),
    "pylate": Format(write_pylate, scores="always"),
    "flagembedding": Format(write_flagembedding, scores="optional"),
    "tevatron": Format(write_tevatron),
    "trec": Format(write_run, has_texts=False, has_positives=False, scores="of negatives"),
    "aoq": Format(write_official, has_texts=False, has_positives=False, both_directions=True),
}


def find_format(name: str) -> Format:
    if name not in FORMATS:
        raise ValueError(f"there is no format {name!r}; formats are {', '.join(FORMATS)}.")
    return FORMATS[name]
