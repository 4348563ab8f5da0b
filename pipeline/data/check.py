"""Everything that is wrong with a dataset folder at once: what opening a split checks, and what only reading all shows.

An error: the folder cannot be trained on as it is. A warning: it can, but something may mislead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Shaped

from aoq.pipeline.data.annotations import annotation_files, read_annotation
from aoq.pipeline.data.files import line_problems, open_boxes, open_features, read_mask, split_lines
from aoq.pipeline.data.folder import REQUIRED, find_splits, open_split, present_files
from aoq.pipeline.data.pairs import fit_ids, pair_captions, read_pairs, repeats
from aoq.pipeline.data.phrases import phrase_problems, phrases_path

MOST_OF_A_KIND = 20
BLOCK_BYTES = 32 * 2**20
T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    """Something wrong in a file: at a line of a text (from 1), at a row of an array (from 0), or in the whole."""

    file: str
    message: str
    severity: Literal["error", "warning"] = "error"
    line: int | None = None
    row: int | None = None

    def __str__(self) -> str:
        where = f":{self.line}" if self.line is not None else f"[{self.row}]" if self.row is not None else ""
        return f"{self.severity}: {self.file}{where}: {self.message}"


def check_folder(folder: Path, chosen: Sequence[str] | None = None) -> list[Problem]:
    """All problems of all splits, or of those chosen; of each kind in each file the first MOST_OF_A_KIND, and how
    many more there are.

    Arrays are read once, block by block, so memory does not grow with them. Files of other names are ignored.
    """
    splits = find_splits(folder) if chosen is None else chosen
    if not splits:
        return [Problem(str(folder), "holds no split; one needs files such as train_ims.npy and train_caps.txt")]
    examinations = [_examine(folder, split) for split in splits]
    problems = [problem for examined in examinations for problem in examined.problems]
    train = next((examined for examined in examinations if examined.split == "train"), None)
    for other in examinations:
        if train is not None and other is not train:
            problems += _at_most(_leaks(train, other))
    return problems


@dataclass
class _Examination:
    """What is known of a split so far. Whatever cannot be read is a problem, and what needs it is not looked at."""

    split: str
    paths: dict[str, Path]
    problems: list[Problem] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)

    def attempt(self, suffix: str, read: Callable[[Path], T]) -> T | None:
        """The result of reading a file; None with a problem if that fails, None without if there is no such file."""
        path = self.paths.get(suffix)
        if path is None:
            return None
        try:
            return read(path)
        except (OSError, ValueError) as error:
            self.problems.append(Problem(path.name, str(error).removeprefix(f"{path}: ")))
            return None

    def note(self, problems: Iterable[Problem]) -> None:
        self.problems += _at_most(problems)


def _examine(folder: Path, split: str) -> _Examination:
    examined = _Examination(split, present_files(folder, split))
    if phrases_path(folder, split).is_file():
        examined.paths["phrases.jsonl"] = phrases_path(folder, split)
    for suffix in REQUIRED:
        if suffix not in examined.paths:
            examined.problems.append(Problem(f"{split}_{suffix}", "is missing; every split needs one"))
    captions, ids = _examine_text(examined, "caps.txt"), _examine_text(examined, "ids.txt")
    features = examined.attempt("ims.npy", open_features)
    if captions is not None:
        told = captions
        problems = examined.attempt("phrases.jsonl", lambda path: list(phrase_problems(path, told))) or []
        examined.note(Problem(phrases_path(folder, split).name, message, line=line) for line, message in problems)
    repeat = 1
    if features is not None:
        if captions is not None:
            repeat = _examine_pairing(examined, features, len(captions), ids)
        _examine_features(examined, features, repeat)
        _examine_geometry(examined, *features.shape[:2])
    ids_file = f"{split}_ids.txt"
    examined.note(
        Problem(ids_file, f"repeats the id of line {first + 1}", "warning", line=row + 1)
        for row, first in _again(examined.ids)
    )
    examined.note(_thumb_problems(folder, examined.ids))
    _examine_annotations(examined, folder)
    return examined


def _examine_annotations(examined: _Examination, folder: Path) -> None:
    """Once the split itself can be opened."""
    try:
        files = annotation_files(folder, examined.split)
    except ValueError as error:
        examined.problems.append(Problem(f"{examined.split}_*", str(error)))
        return
    if not files or any(problem.severity == "error" for problem in examined.problems):
        return
    split = open_split(folder, examined.split)
    for name, path in files.items():
        examined.paths[name] = path
        examined.attempt(name, lambda path: read_annotation(path, split))


def _examine_text(examined: _Examination, suffix: str) -> list[str] | None:
    """The lines, with a mark in place of what cannot be decoded."""
    content = examined.attempt(suffix, Path.read_bytes)
    if content is None:
        return None
    name = examined.paths[suffix].name
    examined.note(Problem(name, message, line=line) for line, message in line_problems(content))
    return [line.decode("utf-8", errors="replace") for line in split_lines(content)]


def _examine_pairing(
    examined: _Examination, features: Float[np.ndarray, "rows regions features"], captions: int, ids: list[str] | None
) -> int:
    """How often each image stands in a row."""
    pairs = examined.attempt("pairs.npy", lambda path: read_pairs(path, captions))
    repeat = repeats(features, captions, pairs, ids)
    images = len(features) // repeat
    if pairs is not None or "pairs.npy" not in examined.paths:
        examined.attempt("ims.npy", lambda path: pair_captions(path, len(features), repeat, captions, pairs))
    if ids is not None:
        lines = ids
        examined.ids = examined.attempt("ids.txt", lambda path: fit_ids(path, lines, images, captions)) or []
    return repeat


def _examine_features(
    examined: _Examination, features: Float[np.ndarray, "rows regions features"], repeat: int
) -> None:
    """One pass: rows that are not finite, rows that stand there before, copies of an image that are none."""
    name = examined.paths["ims.npy"].name
    broken: list[int] = []
    digests: list[bytes] = []
    for start, block in _blocks(features):
        broken += (start + np.flatnonzero(~np.isfinite(block).all(axis=(1, 2)))).tolist()
        digests += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in block]
    examined.digests = digests[::repeat]
    examined.note(Problem(name, "holds NaN or infinite numbers; extract the image again", row=row) for row in broken)
    examined.note(
        Problem(name, f"is not the image of row {row - row % repeat}; elsewhere {repeat} rows are one image", row=row)
        for row in range(len(digests))
        if digests[row] != digests[row - row % repeat]
    )
    examined.note(
        Problem(name, f"has the features of row {first * repeat}: the same image twice", "warning", row=row * repeat)
        for row, first in _again(examined.digests)
    )


def _examine_geometry(examined: _Examination, rows: int, regions: int) -> None:
    boxes = examined.attempt("boxes.npy", lambda path: open_boxes(path, rows, regions))
    if boxes is not None:
        bad = [start + row for start, block in _blocks(boxes) for row in np.flatnonzero(_has_bad_box(block))]
        message = "has a box outside [0, 1] or with x2 < x1 or y2 < y1; divide by the image's width and height"
        if boxes.shape[2] > 4:
            message = f"holds no grid blocks: {boxes.shape[2] // 2} whole numbers from 0, then as many shares in [0, 1]"
        examined.note(Problem(examined.paths["boxes.npy"].name, message, row=int(row)) for row in bad)
    mask = examined.attempt("mask.npy", lambda path: read_mask(path, rows, regions))
    if mask is not None:
        empty = np.flatnonzero(~mask.any(axis=1))
        message = "masks every region; leave at least one real"
        examined.note(Problem(examined.paths["mask.npy"].name, message, row=int(row)) for row in empty)


def _has_bad_box(boxes: Float[np.ndarray, "rows regions coordinates"]) -> Bool[np.ndarray, " rows"]:
    # Written so that NaN is bad too.
    first, last = np.split(boxes, 2, axis=2)
    is_share = (last >= 0.0) & (last <= 1.0)
    is_low = (first >= 0.0) & (first <= last) if boxes.shape[2] == 4 else (first >= 0.0) & (first % 1 == 0)
    return np.logical_not((is_share & is_low).all(axis=(1, 2)))


def _thumb_problems(folder: Path, ids: Sequence[str]) -> Iterator[Problem]:
    thumbs = folder / "thumbs"
    if thumbs.is_dir():
        there = {path.name for path in thumbs.iterdir()}
        for line, image in enumerate(ids, start=1):
            if image not in there:
                yield Problem(f"thumbs/{image}", f"is missing; it is image {line} of its split", "warning")


def _leaks(train: _Examination, other: _Examination) -> Iterator[Problem]:
    digests = {digest: row for row, digest in enumerate(train.digests)}
    ids = {image: row for row, image in enumerate(train.ids)}
    for row, digest in enumerate(other.digests):
        if digest in digests:
            message = f"image {row} has the features of image {digests[digest]} of train: a leak"
            yield Problem(f"{other.split}_ims.npy", message, "warning", row=row)
    for row, image in enumerate(other.ids):
        if image in ids:
            message = f"image {image!r} is in train too (line {ids[image] + 1}): a leak"
            yield Problem(f"{other.split}_ids.txt", message, "warning", line=row + 1)


def _again(items: Sequence[T]) -> Iterator[tuple[int, int]]:
    """Positions of items that stood there before, each with the first position.

    >>> list(_again("abca"))
    [(3, 0)]
    """
    first: dict[T, int] = {}
    for position, item in enumerate(items):
        if first.setdefault(item, position) != position:
            yield position, first[item]


def _at_most(problems: Iterable[Problem]) -> list[Problem]:
    """The first MOST_OF_A_KIND, and one that counts the others."""
    rest = iter(problems)
    found = list(islice(rest, MOST_OF_A_KIND))
    more = sum(1 for _ in rest)
    if more:
        found.append(replace(found[-1], message=f"... and {more:,} more like this", line=None, row=None))
    return found


def _blocks(array: Shaped[np.ndarray, "rows ..."]) -> Iterator[tuple[int, Shaped[np.ndarray, "block ..."]]]:
    """Consecutive rows as copies in memory, with the number of the first."""
    size = max(1, BLOCK_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), size):
        yield start, np.array(array[start : start + size])
