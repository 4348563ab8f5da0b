"""A dataset folder in the field's "precomp" layout, as docs/formats/dataset.md describes it, opened split by split.

Official arrays that repeat every image once per caption are read as one row per image. No split is ever cut:
the official loaders take the first 1000 images of `dev`, this one takes all.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int32
from typing_extensions import NotRequired, TypedDict

from aoq.pipeline.data import files
from aoq.pipeline.files import known_sha256
from aoq.pipeline.reading import read_json, reading
from aoq.pipeline.search.positives import Positives, matching_pairs
from aoq.pipeline.search.problem import Direction

logger = logging.getLogger(__name__)

REQUIRED = ("ims.npy", "caps.txt")
OPTIONAL = ("ids.txt", "boxes.npy", "mask.npy", "pairs.npy", "identity.npy")
SAMPLED_FILES = ("ims.npy", "boxes.npy", "mask.npy")
"""Arrays that are fingerprinted by samples; all other files are hashed as a whole."""
PREPARED = "prepared.json"
"""What `aoq prepare` records about a folder that it made."""
BLOCK, BLOCKS = 4096, 256


@dataclass(frozen=True)
class Split:
    """The images and captions of one split; every image has at least one caption."""

    name: str
    features: Float[np.ndarray, "images regions features"]
    captions: list[str]
    image_of: Int32[np.ndarray, " captions"]
    ids: list[str]
    boxes: Float[np.ndarray, "images regions coordinates"] | None = None
    mask: Bool[np.ndarray, "images regions"] | None = None
    identity: Int32[np.ndarray, " images"] | None = None
    """Images that share a number are the same photograph, and never each other's negatives; None: no copies."""

    @property
    def image_count(self) -> int:
        return len(self.features)

    @property
    def caption_count(self) -> int:
        return len(self.captions)

    def count_regions(self, most: int | None) -> int:
        """Count the regions to read per image: `most`, as boxes are sorted by falling score; all cells of a grid.

        A grid's boxes are sorted row by row.
        """
        count = self.features.shape[1]
        if most is None or most >= count or self.boxes is None or self.boxes.shape[2] != 4:
            return count if most is None else min(count, most)
        left, top = self.boxes[0, :, 0], self.boxes[0, :, 1]
        cells = np.stack(np.meshgrid(np.unique(left), np.unique(top)), axis=-1).reshape(-1, 2)
        return count if np.array_equal(cells, np.stack([left, top], axis=1)) else most

    @cached_property
    def positives(self) -> Int32[np.ndarray, "pairs 2"]:
        """Rows (image, caption): each caption with its image and the copies of that."""
        return matching_pairs(self.image_of, self.identity)

    @cached_property
    def captions_of(self) -> Positives:
        """The captions of each image itself, without those of its copies."""
        return Positives.of_pairs(self.image_of, np.arange(self.caption_count), self.image_count)

    def find_answers(self, direction: Direction, query: int) -> Int32[np.ndarray, " right"]:
        """Return the right captions of an image (i2t), or the right images of a caption (t2i), rising."""
        asked = 0 if direction == "i2t" else 1
        return np.sort(self.positives[self.positives[:, asked] == query, 1 - asked])


def open_split(folder: Path, split: str) -> Split:
    """Open a split and check that its files fit each other; features and boxes stay on disk."""
    paths = split_paths(folder, split)
    features = files.open_features(paths["ims.npy"])
    captions = files.read_lines(paths["caps.txt"])
    lines = files.read_lines(paths["ids.txt"]) if "ids.txt" in paths else None
    pairs = files.read_pairing(paths["pairs.npy"], len(captions)) if "pairs.npy" in paths else None
    rows, regions, _ = features.shape
    repeat = files.repeats(features, len(captions), pairs, lines)
    if repeat > 1:
        logger.info("%s: each image is repeated in %d rows; one of them is used", paths["ims.npy"], repeat)
    images = rows // repeat
    image_of = files.pair_captions(paths["caps.txt" if pairs is None else "pairs.npy"], images, len(captions), pairs)
    ids = files.fit_ids(paths["ids.txt"], lines, images, len(captions)) if lines else [*map(str, range(images))]
    boxes = files.open_boxes(paths["boxes.npy"], rows, regions)[::repeat] if "boxes.npy" in paths else None
    mask = files.read_mask(paths["mask.npy"], rows, regions)[::repeat] if "mask.npy" in paths else None
    identity = files.read_identity(paths["identity.npy"], images) if "identity.npy" in paths else None
    return Split(split, features[::repeat], captions, image_of, ids, boxes, mask, identity)


def first_images(split: Split, count: int) -> Split:
    """Take the first images of a split, with their captions in the same order."""
    if count > split.image_count:
        raise ValueError(f"{count} images of split {split.name!r} are requested, but it has {split.image_count}.")
    rows = np.flatnonzero(split.image_of < count)
    by_image = {name: getattr(split, name) for name in ("features", "ids", "boxes", "mask", "identity")}
    cut = {name: part[:count] for name, part in by_image.items() if part is not None}
    return replace(split, captions=[split.captions[row] for row in rows], image_of=split.image_of[rows], **cut)


def split_paths(folder: Path, split: str) -> dict[str, Path]:
    """Find the split's files; refuse a split that lacks a required one."""
    paths = present_files(folder, split)
    missing = [f"{split}_{suffix}" for suffix in REQUIRED if suffix not in paths]
    if missing and not folder.is_dir():
        raise FileNotFoundError(
            f"{folder}: there is no such folder; check its name. An experiment's lies below --data-root "
            "([paths] data_root in luigi.cfg)."
        )
    if missing:
        present = sorted(path.name for path in folder.iterdir())
        listed = ", ".join(present[:20]) + (", ..." if len(present) > 20 else "")
        raise FileNotFoundError(
            f"{folder}: split {split!r} needs {' and '.join(missing)}; the folder holds "
            f"{listed or 'nothing'}. Splits there: {', '.join(find_splits(folder)) or 'none'}."
        )
    return paths


def present_files(folder: Path, split: str) -> dict[str, Path]:
    """Find the split's files that exist, by the part after `{split}_`."""
    paths = {suffix: folder / f"{split}_{suffix}" for suffix in (*REQUIRED, *OPTIONAL)}
    return {suffix: path for suffix, path in paths.items() if path.exists()}


def find_splits(folder: Path) -> list[str]:
    """Return the names before `_ims.npy` and `_caps.txt`, sorted."""
    return sorted({path.name.removesuffix(f"_{end}") for end in REQUIRED for path in folder.glob(f"?*_{end}")})


class _Prepared(TypedDict):
    sha256: NotRequired[dict[str, str]]
    """Hashes of the splits' files; older folders lack them."""


def changed_files(folder: Path, splits: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield each file that is not as `aoq prepare` wrote it, and a sentence; of all splits, or of those chosen."""
    if not (record := folder / PREPARED).is_file():
        return
    chosen = {f"{split}_{suffix}" for split in splits or () for suffix in (*REQUIRED, *OPTIONAL)}
    remedy = f"prepare the folder again, or, if the change is meant, remove the file's line from {PREPARED}"
    for name, sha256 in read_json(record, _Prepared).get("sha256", {}).items():
        path = folder / name
        if (splits is None or name in chosen) and not (path.is_file() and known_sha256(path) == sha256):
            yield name, f"has changed since `aoq prepare` wrote it; {remedy}"


def split_fingerprint(folder: Path, split: str) -> str:
    """Fingerprint a split's content, in hexadecimal, wherever it lies and whenever it was written.

    It hashes the names and sizes of the files, the small files, and of the large arrays (features, boxes,
    mask) 256 evenly spaced blocks of 4 KiB, the first (with the header) and the last among them: fast enough to
    plan by at any size. A change between those blocks is caught by the full hashes of `aoq verify`, not here.
    """
    digest = hashlib.sha256()
    for suffix, path in split_paths(folder, split).items():
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for block in sample(path) if suffix in SAMPLED_FILES else [files.read_text(path)]:
            digest.update(block)
    return digest.hexdigest()


def sample(path: Path) -> Iterator[bytes]:
    """Yield evenly spaced blocks of a file, or all of a small one."""
    last = max(path.stat().st_size - BLOCK, 0)
    is_small = last <= BLOCK * BLOCKS
    starts = range(0, last + BLOCK, BLOCK) if is_small else [i * last // (BLOCKS - 1) for i in range(BLOCKS)]
    with reading(path, "an array"), path.open("rb", buffering=0) as file:
        for start in starts:
            file.seek(start)
            yield file.read(BLOCK)
