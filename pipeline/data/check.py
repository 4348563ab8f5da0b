"""Report all flaws of a dataset folder at once: those that opening a split finds, and those that need a full read.

A folder with an error cannot be trained on. With a warning it can, but results may mislead.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped

from aoq.pipeline.data import files
from aoq.pipeline.data.annotations import annotation_files, read_annotation
from aoq.pipeline.data.findings import Facts, Flaw, Severity, at_most, median_norm
from aoq.pipeline.data.folder import REQUIRED, find_splits, open_split
from aoq.pipeline.data.phrases import read_phrases
from aoq.pipeline.data.vocabulary import comparable_words

_SHARED = 0.05
"""Fraction of captions with the text of another image's from which a warning says so."""
_SMALL_NORM = 0.01
"""Median norm of regions below which a warning says so."""
# Measured: VSE++ on 2,000 images of Flickr8k, 8 epochs, dev rsum: 183.6 at norm 1 and at 0.1, 178.9 at 0.01, 146.9 at
# 0.003, 66.7 at 0.001; 181.7 at 9, the detector's own.
CHECKED_BYTES = 32 * 2**20
_WHOLE_FILE = ((None,),)
_Value = TypeVar("_Value")


class Examined(NamedTuple):
    facts: list[Facts]
    kinds: list[list[Flaw]]
    """The flaws of each kind and file; errors come first."""

    @property
    def flaws(self) -> list[Flaw]:
        return [flaw for kind in self.kinds for flaw in kind]


def examine_folder(folder: Path, chosen: Sequence[str] | None = None) -> Examined:
    """Examine all splits of a folder, or those chosen.

    For each kind of flaw in each file, list the first MOST_OF_A_KIND and count the others. Arrays are read once, block
    by block, so memory does not grow with them. Files of other names are ignored.
    """
    splits = find_splits(folder) if chosen is None else chosen
    if not splits:
        lacks = "holds no split" if folder.is_dir() else "is not a folder"
        message = f"{lacks}; a split has files such as train_ims.npy and train_caps.txt"
        return Examined([], [[Flaw(str(folder), message)]])
    examined = {split: _Examination(folder, split) for split in splits}
    for split, other in examined.items():
        if "train" in examined and split != "train":
            other.compare_with(examined["train"])
    kinds = [kind for each in examined.values() for kind in each.kinds]
    facts = [each.facts for each in examined.values() if each.facts is not None]
    return Examined(facts, sorted(kinds, key=lambda kind: kind[0].severity != "error"))


class _Examination:
    """The state of a split's examination. A file that cannot be read is a flaw, and checks that need it are skipped."""

    def __init__(self, folder: Path, split: str) -> None:
        self.folder, self.split = folder, split
        self.kinds: list[list[Flaw]] = []
        self.ids: list[str] = []
        self.digests: list[bytes] = []
        self.feature_size: int | None = None
        self.facts: Facts | None = None
        self.identity: Int32[np.ndarray, " images"] | None = None
        for suffix in REQUIRED:
            if not self._path(suffix).is_file():
                self._note(suffix, "is missing; every split needs one")
        captions, ids = self._lines("caps.txt"), self._lines("ids.txt")
        features = self._attempt("ims.npy", files.open_features)
        if captions is not None:
            problems = self._attempt("phrases.jsonl", lambda path: read_phrases(path, captions)[1])
            self._note("phrases.jsonl", "{}", places=problems or [])
        if features is not None:
            self.feature_size = features.shape[2]
            repeat = 1 if captions is None else self._examine_pairing(features, captions, ids)
            self._examine_features(features, repeat)
            self._examine_differences(captions or [])
            self._examine_geometry(*features.shape[:2])
        same = ((row + 1, first + 1) for row, first in _repeated(self.ids))
        self._note("ids.txt", "repeats the id of line {}", "warning", same)
        self._examine_annotations()

    def compare_with(self, train: _Examination) -> None:
        """Note features that a model trained on train cannot read, and images that are in train too."""
        if None not in (self.feature_size, train.feature_size) and self.feature_size != train.feature_size:
            sizes = f"has regions of {self.feature_size} features, and train's have {train.feature_size}"
            self._note("ims.npy", f"{sizes}; extract both with the same extractor")
        if not train._is_constant and not self._is_constant:
            same = ((row, row, other) for row, other in leaks(self.digests, train.digests))
            self._note("ims.npy", "image {} has the features of image {} of train: a leak", "warning", same)
        named = ((row + 1, self.ids[row], other + 1) for row, other in leaks(self.ids, train.ids))
        self._note("ids.txt", "image {!r} is in train too (line {}): a leak", "warning", named)

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.split}_{suffix}"

    def _attempt(self, suffix: str, read: Callable[[Path], _Value]) -> _Value | None:
        """Read a file; None with a flaw if that fails, None without one if there is no such file."""
        path = self._path(suffix)
        try:
            return read(path) if path.exists() else None
        except (OSError, ValueError) as error:
            self._note(suffix, "{}", places=[(None, str(error).removeprefix(str(path)).removeprefix(":").lstrip())])
            return None

    def _note(
        self, suffix: str, message: str, severity: Severity = "error", places: Iterable[Sequence[Any]] = _WHOLE_FILE
    ) -> None:
        """Note flaws at rows of an array, or at lines of a text; the message's values follow each place."""
        file, where = f"{self.split}_{suffix}", "row" if suffix.endswith(".npy") else "line"
        kind = at_most(Flaw(file, message.format(*values), severity, **{where: at}) for at, *values in places)
        self.kinds += [kind] if kind else []

    def _lines(self, suffix: str) -> list[str] | None:
        """Read a text's lines, with a mark instead of undecodable bytes."""
        content = self._attempt(suffix, files.read_text)
        if content is None:
            return None
        self._note(suffix, "{}", places=files.line_problems(content))
        return [line.decode("utf-8", errors="replace") for line in files.split_lines(content)]

    def _examine_pairing(self, features: files.Features, texts: Sequence[str], ids: list[str] | None) -> int:
        """Count the consecutive rows that hold one image."""
        captions = len(texts)
        pairs = self._attempt("pairs.npy", lambda path: files.read_pairing(path, captions))
        repeat = files.repeats(features, captions, pairs, ids)
        images = len(features) // repeat
        self.identity = identity = self._attempt("identity.npy", lambda path: files.read_identity(path, images))
        image_of = None
        if pairs is not None or not self._path("pairs.npy").exists():
            paired_by = "caps.txt" if pairs is None else "pairs.npy"
            image_of = self._attempt(paired_by, lambda path: files.pair_captions(path, images, captions, pairs))
        if image_of is not None:
            counts, by_file = np.bincount(image_of), "" if pairs is None else f"{self.split}_pairs.npy"
            fewest, most, (_, regions, size) = int(counts.min()), int(counts.max()), features.shape
            shown = self.split, images, regions, size, str(features.dtype), median_norm(features), captions
            photographs = images if identity is None else len(np.unique(identity))
            self.facts = Facts(*shown, fewest, most, by_file, repeat, photographs)
            self._examine_texts(texts, image_of if identity is None else identity[image_of])
        if ids is not None:
            self.ids = self._attempt("ids.txt", lambda path: files.fit_ids(path, ids, images, captions)) or []
        return repeat

    def _examine_texts(self, texts: Sequence[str], photograph_of: Int32[np.ndarray, " captions"]) -> None:
        photographs: dict[tuple[str, ...], set[int]] = {}
        words = [comparable_words(text) for text in texts]
        for one, photograph in zip(words, photograph_of.tolist(), strict=True):
            photographs.setdefault(one, set()).add(photograph)
        shared = sum(len(photographs[one]) > 1 for one in words if one)
        if len(photographs) > 1 and shared >= _SHARED * len(texts):
            left_out = "these are false negatives, which [screen] same_text = true leaves out"
            harm = left_out if self.split.startswith("train") else "recalls count these as wrong"
            message = f"{shared:,} of {len(texts):,} captions have the text of another image's; {harm}"
            self._note("caps.txt", message, "warning")

    def _examine_features(self, features: files.Features, repeat: int) -> None:
        """Find, in one pass, rows that are not finite, rows that repeat earlier ones, and copies that differ."""
        broken, empty, digests = [], [], []
        for start, block in _row_blocks(features):
            broken += (start + np.argwhere(~np.isfinite(block).all(axis=(1, 2)))).tolist()
            is_zero = ~block.any(axis=(1, 2))
            empty += (start + np.argwhere(is_zero)).tolist()
            block[is_zero] = 0.0  # some may be -0.0, which has other bytes
            digests += [hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in block]
        self.digests = digests[::repeat]
        remedy = "extract the image again"
        if features.dtype == np.float16:
            remedy = f"float16 ends at 65,504: write larger ones as float32, or {remedy}"
        self._note("ims.npy", f"holds NaN or infinite numbers; {remedy}", places=broken)
        firsts = ((row, row - row % repeat) for row in range(len(digests)))
        other = ((row, first) for row, first in firsts if digests[row] != digests[first])
        self._note("ims.npy", f"is not the image of row {{}}; elsewhere {repeat} rows are one image", places=other)
        if self._is_constant:
            return
        self._note("ims.npy", "holds zeros alone; extract the image again", "warning", empty)
        useless = {digests[row] for (row,) in empty + broken}  # their copies are not images
        self.digests = [b"" if digest in useless else digest for digest in self.digests]
        copies = ((row, first) for row, first in _repeated(self.digests) if self.digests[row])
        identity = range(len(self.digests)) if self.identity is None else self.identity
        same = ((row * repeat, first * repeat) for row, first in copies if identity[row] != identity[first])
        remedy = f"give both one number in {self.split}_identity.npy, or remove one"
        message = f"has the features of row {{}}, and each counts as the other's negative; {remedy}"
        self._note("ims.npy", message, "warning", same)

    @property
    def _is_constant(self) -> bool:
        return len(self.digests) > 1 and len(set(self.digests)) == 1 and any(self.digests)

    def _examine_differences(self, captions: Sequence[str]) -> None:
        """Check that some pair has a negative that differs from it, and that regions are large enough to learn from."""
        if self.facts is not None and self.facts.norm is not None and self.facts.norm < _SMALL_NORM:
            small = f"has regions of norm {self.facts.norm:.1g} (median), too small to learn from"
            remedy = "multiply the features of all splits by one number, so that it is about 1 or more"
            self._note("ims.npy", f"{small}; {remedy}", "warning")
        if len(self.digests) == 1:
            self._note("ims.npy", "holds one image, so no pair has a negative; give two at least")
        elif self.identity is not None and not self.identity.any():  # numbered from 0
            message = "says that all images are one, so no pair has a negative; number them by photograph"
            self._note("identity.npy", message)
        elif self._is_constant:
            self._note("ims.npy", "holds the same features for every image, so no model can learn; extract them again")
        if len(captions) > 1 and len({*map(comparable_words, captions)}) == 1:
            self._note("caps.txt", "holds the same caption for every image, so no model can learn; give each its own")

    def _examine_geometry(self, rows: int, regions: int) -> None:
        boxes = self._attempt("boxes.npy", lambda path: files.open_boxes(path, rows, regions))
        if boxes is not None:
            message = "has a box outside [0, 1] or with x2 < x1 or y2 < y1; divide by the image's width and height"
            if (blocks := boxes.shape[2] // 2) > 2:
                message = f"holds no grid blocks: {blocks} whole numbers from 0, then as many shares in [0, 1]"
            bad = ((row + at).tolist() for row, block in _row_blocks(boxes) for at in np.argwhere(_has_bad_box(block)))
            self._note("boxes.npy", message, places=bad)
        mask = self._attempt("mask.npy", lambda path: files.read_mask(path, rows, regions))
        if mask is not None:
            empty = np.argwhere(~mask.any(axis=1)).tolist()
            self._note("mask.npy", "masks every region; leave at least one real", places=empty)

    def _examine_annotations(self) -> None:
        try:
            paths = annotation_files(self.folder, self.split)
        except ValueError as error:
            self._note("*", "{}", places=[(None, str(error))])
            return
        if paths and all(kind[0].severity == "warning" for kind in self.kinds):
            split = open_split(self.folder, self.split)
            for path in paths.values():
                self._attempt(path.name.removeprefix(f"{self.split}_"), lambda path: read_annotation(path, split))


def leaks(images: Sequence[_Value], train: Sequence[_Value]) -> list[tuple[int, int]]:
    """Return each row whose image is in train too, and the row there, by ids or digests; that of no image is empty."""
    rows = {image: row for row, image in enumerate(train) if image}
    return [(row, rows[image]) for row, image in enumerate(images) if image in rows]


def _has_bad_box(boxes: Float[np.ndarray, "rows regions coordinates"]) -> Bool[np.ndarray, " rows"]:
    # Written so that NaN fails too.
    first, last = np.split(boxes, 2, axis=2)
    is_share = (last >= 0.0) & (last <= 1.0)
    is_low = (first >= 0.0) & (first <= last) if boxes.shape[2] == 4 else (first >= 0.0) & (first % 1 == 0)
    return np.logical_not((is_share & is_low).all(axis=(1, 2)))


def _repeated(items: Sequence[_Value]) -> Iterator[tuple[int, int]]:
    """Yield the positions of items that occurred before, each with the first position."""
    first: dict[_Value, int] = {}
    for position, item in enumerate(items):
        if first.setdefault(item, position) != position:
            yield position, first[item]


def _row_blocks(array: Shaped[np.ndarray, "rows ..."]) -> Iterator[tuple[int, Shaped[np.ndarray, "block ..."]]]:
    """Iterate over blocks of rows, copied into memory, with the number of the first row."""
    size = max(1, CHECKED_BYTES // max(1, array[:1].nbytes))
    for start in range(0, len(array), size):
        yield start, np.array(array[start : start + size])
