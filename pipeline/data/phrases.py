"""Phrases of captions and their regions, `{split}_phrases.jsonl`: the ground truth for attention.

One line per caption, in the order of `{split}_caps.txt`: a json list of its phrases (`[]`: none is annotated).

    [{"phrase": "two dogs", "start": 0, "boxes": [[0.1, 0.4, 0.3, 0.8], [0.5, 0.4, 0.7, 0.9]]}, ...]

`phrase` is the text and `start` its position among the caption's tokens, counted from 0 as `tokenise` gives them;
`boxes` are x1, y1, x2, y2 in [0, 1], as fractions of the image's width and height (Flickr30K Entities: those of the
phrase's chain; phrases that are not visual or have no box are left out). Instead of `boxes`, `regions` may name rows
of the image's own regions, if it is known what each of them shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from aoq.pipeline.data.demo import labels_path, read_labels
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.reading import parse_json


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
        phrases = [[Phrase(start, stop, regions=tuple(shown)) for start, stop, shown in spoken] for spoken in labels]
        _check_count(path, phrases, split.captions)
    else:
        phrases = read_phrases(path, split.captions)
    count = split.features.shape[1]
    for line, spoken in enumerate(phrases, start=1):
        for phrase in spoken:
            if phrase.boxes is not None and (split.boxes is None or split.boxes.shape[2] != 4):
                raise ValueError(
                    f"{path}:{line}: a phrase's boxes can only be matched with the regions' own boxes; write them to "
                    f"{split.name}_boxes.npy (images, regions, 4), x1 y1 x2 y2 in [0, 1]."
                )
            if max(phrase.regions, default=0) >= count:
                raise ValueError(f"{path}:{line}: region {max(phrase.regions)} of {count}; rows count from 0.")
    return phrases


def read_phrases(path: Path, captions: Sequence[str]) -> list[list[Phrase]]:
    """Read the phrases of every caption; refuse those that are not at their stated position."""
    for number, problem in phrase_problems(path, captions):
        raise ValueError(f"{path}:{number}: {problem}")
    return [_read_line(line, tokenise(caption)) for line, caption in _lines(path, captions)]


def phrase_problems(path: Path, captions: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Line number (from 1) and problem of every bad line."""
    for number, (line, caption) in enumerate(_lines(path, captions), start=1):
        try:
            _read_line(line, tokenise(caption))
        except ValueError as error:
            yield number, str(error)


def _lines(path: Path, captions: Sequence[str]) -> list[tuple[str, str]]:
    lines = read_lines(path)
    _check_count(path, lines, captions)
    return list(zip(lines, captions, strict=True))


def _check_count(path: Path, lines: Sequence[object], captions: Sequence[str]) -> None:
    if len(lines) != len(captions):
        raise ValueError(
            f"{path}: {len(lines)} lines for {len(captions)} captions; write one line per caption, [] where nothing is "
            "annotated."
        )


def _read_line(line: str, tokens: list[str]) -> list[Phrase]:
    try:
        items = parse_json(line, list[Any])
    except ValueError as error:
        raise ValueError(f"{line[:40]!r} is no json list ({error}); write a list of phrases, [] for none.") from None
    return [_read_phrase(item, tokens) for item in items]


def _read_phrase(item: Any, tokens: list[str]) -> Phrase:
    keys = item.keys() if isinstance(item, dict) else set()
    if keys not in ({"phrase", "start", "boxes"}, {"phrase", "start", "regions"}):
        raise ValueError(f"a phrase is an object with phrase, start and either boxes or regions; this is {item!r}.")
    if not isinstance(item["phrase"], str) or type(item["start"]) is not int:
        raise ValueError(f"`phrase` is a text and `start` a whole number; got {item['phrase']!r}, {item['start']!r}.")
    words, start = tokenise(item["phrase"]), item["start"]
    stop = start + len(words)
    if not words or start < 0 or tokens[start:stop] != words:
        raise ValueError(
            f"phrase {item['phrase']!r} is not at token {start} of the caption, whose tokens are {tokens}; "
            "correct `start`, counted from 0."
        )
    if "boxes" in keys:
        return Phrase(start, stop, _read_boxes(item["boxes"]))
    regions = item["regions"]
    if not isinstance(regions, list) or any(type(region) is not int or region < 0 for region in regions):
        raise ValueError(f"`regions` are whole numbers from 0; got {regions!r}.")
    return Phrase(start, stop, regions=tuple(regions))


def _read_boxes(boxes: Any) -> Float64[np.ndarray, "boxes 4"]:
    try:
        corners = np.array(boxes, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        corners = np.zeros(0)
    if corners.ndim != 2 or corners.shape[1] != 4 or not len(corners):
        raise ValueError(f"`boxes` is a list of x1, y1, x2, y2; got {boxes!r}.")
    low, high = corners[:, :2], corners[:, 2:]
    if not ((low >= 0) & (low <= high) & (high <= 1)).all():  # NaN fails too
        raise ValueError(
            f"boxes {boxes} leave [0, 1] or have x2 < x1 or y2 < y1; divide by the image's width and height."
        )
    return corners
