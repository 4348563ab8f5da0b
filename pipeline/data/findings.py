"""What a check of a dataset folder finds: facts about each split, and flaws; many flaws of one kind are summed up.

Among the flaws are captions that no model can learn from: different texts with the same token ids.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal

import numpy as np

from aoq.pipeline.data import files

MOST_OF_A_KIND = 20
_CONFUSED = 0.05
"""Fraction of captions with the token ids of another text from which a warning says so."""
_FEWEST = 0.05
"""Fraction of the texts that must stay different; below it there is nothing to learn."""
_CAPTION_REMEDY = (
    "Cut captions that are written without spaces into words, lower `dataset.min_count`, or choose a "
    "`dataset.vocabulary` or `dataset.tokeniser` that has their words."
)
SAMPLED_ROWS = 1000
Severity = Literal["error", "warning"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning")


@dataclass(frozen=True)
class Flaw:
    """A flaw of a file: at a line of a text (from 1), at a row of an array (from 0), or in the whole file."""

    file: str
    message: str
    severity: Severity = "error"
    line: int | None = None
    row: int | None = None
    count: int = 1
    """Number of flaws that it represents."""

    def __str__(self) -> str:
        where = f":{self.line}" if self.line is not None else f"[{self.row}]" if self.row is not None else ""
        return f"{self.severity}: {self.file}{where}: {self.message}"


def at_most(flaws: Iterable[Flaw]) -> list[Flaw]:
    """Keep the first MOST_OF_A_KIND flaws, and add one that represents the others."""
    rest = iter(flaws)
    listed = list(islice(rest, MOST_OF_A_KIND))
    if more := sum(1 for _ in rest):
        listed.append(replace(listed[-1], message=f"... and {more:,} more like this", line=None, row=None, count=more))
    return listed


def summed_up(kind: Sequence[Flaw]) -> str:
    more = sum(flaw.count for flaw in kind[1:])
    return f"{kind[0]} (and {more:,} more like this)" if more else f"{kind[0]}"


def total(flaws: Iterable[Flaw], severity: Severity) -> int:
    """Count the flaws, including those that are represented by one."""
    return sum(flaw.count for flaw in flaws if flaw.severity == severity)


@dataclass(frozen=True)
class Facts:
    """The size of a split, and how its captions are paired with its images."""

    split: str
    images: int
    regions: int
    feature_size: int
    dtype: str
    norm: float | None
    """Median norm of the regions; None if none has one."""
    captions: int
    fewest: int
    """Captions of the image that has the fewest."""
    most: int
    paired_by: str
    """The file that pairs them; empty if they are in the images' order."""
    rows_an_image: int
    photographs: int

    def __str__(self) -> str:
        each = f"{self.most}" if self.fewest == self.most else f"{self.fewest} to {self.most}"
        norm = "" if self.norm is None else f", median norm {self.norm:.2g}"
        pairing = f"by {self.paired_by}" if self.paired_by else f"by their order (no {self.split}_pairs.npy)"
        line = (
            f"{self.split}: {self.images:,} images × {self.regions} regions × {self.feature_size} features "
            f"({self.dtype}{norm}), {self.captions:,} captions, {each} per image {pairing}"
        )
        if self.rows_an_image > 1:
            line += f"; each image is repeated in {self.rows_an_image} rows"
        if self.photographs < self.images:
            line += f"; {self.photographs:,} photographs by {self.split}_identity.npy"
        return line


def median_norm(features: files.Features) -> float | None:
    """Return the median norm of the regions of up to SAMPLED_ROWS evenly spaced rows, without zeros and broken ones.

    >>> median_norm(np.array([[[3.0, 4.0], [0.0, 0.0]]], dtype=np.float16))
    5.0
    """
    rows = np.unique(np.linspace(0, len(features) - 1, SAMPLED_ROWS).astype(np.int64))
    norms = np.concatenate([np.linalg.norm(features[row].astype(np.float64), axis=1) for row in rows])
    usual = norms[np.isfinite(norms) & (norms > 0)]
    return float(np.median(usual)) if len(usual) else None


def confusion(file: str, captions: Sequence[str], encoded: Sequence[Hashable]) -> Flaw | None:
    """Count captions with the token ids of another text; an error if hardly any text keeps its own.

    Texts that differ in case or white space only are one.
    """
    texts_of: dict[Hashable, set[str]] = {}
    for caption, ids in zip(captions, encoded, strict=True):
        texts_of.setdefault(ids, set()).add("".join(caption.lower().split()))
    texts, sequences = len(set().union(*texts_of.values())), len(texts_of)
    if texts > 1 and (sequences == 1 or sequences < _FEWEST * texts):
        became = "one token sequence" if sequences == 1 else f"{sequences:,} token sequences"
        return Flaw(file, f"{texts:,} different texts become {became}: no model can tell them apart. {_CAPTION_REMEDY}")
    confused = [row for row, ids in enumerate(encoded) if len(texts_of[ids]) > 1]
    if confused and len(confused) >= _CONFUSED * len(captions):
        first = f"the first in line {confused[0] + 1}: {captions[confused[0]]!r}"
        message = f"{len(confused):,} of {len(captions):,} captions have the token ids of another text"
        return Flaw(file, f"{message} ({first}). {_CAPTION_REMEDY}", "warning")
    return None
