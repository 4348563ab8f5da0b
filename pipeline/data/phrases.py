"""Phrases of captions and their regions, `{split}_phrases.jsonl`: the ground truth for attention.

One line per caption, in the order of `{split}_caps.txt`: a json list of its phrases (`[]`: none is annotated).

    [{"phrase": "two dogs", "start": 0, "boxes": [[0.1, 0.4, 0.3, 0.8], [0.5, 0.4, 0.7, 0.9]]}, ...]

`start` is the position of the text among the caption's tokens, counted from 0 as `tokenise` gives them; `boxes` are
x1, y1, x2, y2 as fractions of the image's width and height.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from jaxtyping import Float64
from pydantic import Field, NonNegativeInt
from typing_extensions import TypedDict

from aoq.pipeline.data.demo import labels_path, read_labels
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.reading import parse_json

Coordinate = Annotated[float, Field(ge=0.0, le=1.0)]
Box = Annotated[list[Coordinate], Field(min_length=4, max_length=4)]


class AnnotatedPhrase(TypedDict):
    phrase: str
    start: NonNegativeInt
    boxes: Annotated[list[Box], Field(min_length=1)]


@dataclass(frozen=True)
class Phrase:
    """Tokens start .. stop - 1 of a caption, counted without `<start>`, refer to `boxes` or else to `regions`."""

    start: int
    stop: int
    boxes: Float64[np.ndarray, "boxes 4"] | None = None
    regions: tuple[int, ...] = ()


def annotation_path(folder: Path, split: str) -> Path | None:
    """Return the path of the phrases or of a generated world's labels; None if there is neither."""
    paths = folder / f"{split}_phrases.jsonl", labels_path(folder, split)
    return next((path for path in paths if path.exists()), None)


def find_phrases(folder: Path, split: Split) -> list[list[Phrase]] | None:
    """Find the phrases of every caption; None if the split has no annotation."""
    path = annotation_path(folder, split.name)
    if path is None:
        return None
    if path == labels_path(folder, split.name):
        labels = read_labels(folder, split.name)["phrases"]
        _check_count(path, labels, split.captions)
        return [[Phrase(start, stop, regions=tuple(shown)) for start, stop, shown in spoken] for spoken in labels]
    phrases, problems = read_phrases(path, split.captions)
    if problems:
        raise ValueError("{}:{}: {}".format(path, *problems[0]))
    if any(phrases) and (split.boxes is None or split.boxes.shape[2] != 4):
        raise ValueError(
            f"{path}: the boxes of phrases can only be matched with the regions' own boxes; write them to "
            f"{split.name}_boxes.npy (images, regions, 4), x1 y1 x2 y2 in [0, 1]."
        )
    return phrases


def read_phrases(path: Path, captions: Sequence[str]) -> tuple[list[list[Phrase]], list[tuple[int, str]]]:
    """Read the phrases of every caption, and the line number (from 1) and the problem of every bad line."""
    lines, phrases, problems = read_lines(path), [], []
    _check_count(path, lines, captions)
    for number, (line, caption) in enumerate(zip(lines, captions, strict=True), start=1):
        try:
            phrases.append(_read_line(line, tokenise(caption)))
        except ValueError as error:
            problems.append((number, str(error)))
    return phrases, problems


def _check_count(path: Path, lines: Sequence[object], captions: Sequence[str]) -> None:
    if len(lines) != len(captions):
        raise ValueError(
            f"{path}: {len(lines)} lines for {len(captions)} captions; write one line per caption, [] where nothing is "
            "annotated."
        )


def _read_line(line: str, tokens: list[str]) -> list[Phrase]:
    try:
        items = parse_json(line, list[AnnotatedPhrase])
    except ValueError as error:
        raise ValueError(
            f"{line[:40]!r} is not a json list of phrases ({error}); each has `phrase`, `start` and `boxes`, "
            "fractions of the image's width and height; write [] for none."
        ) from None
    phrases = []
    for item in items:
        words, start = tokenise(item["phrase"]), item["start"]
        stop, boxes = start + len(words), np.array(item["boxes"], dtype=np.float64)
        if not words or tokens[start:stop] != words:
            raise ValueError(
                f"phrase {item['phrase']!r} is not at token {start} of the caption, whose tokens are {tokens}; "
                "correct `start`, counted from 0."
            )
        if (boxes[:, :2] > boxes[:, 2:]).any():
            raise ValueError(f"boxes {item['boxes']} have x2 < x1 or y2 < y1.")
        phrases.append(Phrase(start, stop, boxes))
    return phrases
