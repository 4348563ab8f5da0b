"""Open tables by their folders, with texts, ids and pictures from the command line or beside the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32

from aoq.pipeline.browse.source import Album, CaptionSearch, Source, open_table
from aoq.pipeline.data.folder import RowNumbers, Split
from aoq.pipeline.data.thumbnails import Picture, Thumbnails, small_picture
from aoq.pipeline.digests import digest
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.exchange.pictures import find_pictures
from aoq.pipeline.tables.files import count_rows, read_ids, read_manifest, read_positives, sides_of
from aoq.pipeline.tables.pairs import pair_keys, positives_of


@dataclass(frozen=True)
class Given:
    """Texts, ids and pictures given on the command line for a table's rows."""

    data: Path | None = None
    """A dataset folder, with pictures in thumbs/."""
    split: Split | None = None
    """One of its splits, with captions and ids."""
    texts: Sequence[str] | None = None
    """One text per caption."""
    image_ids: Sequence[str] | None = None
    image_root: Path | None = None
    """Folder of the images' files, each named by its id, with or without an extension."""
    view: Path | None = None


@dataclass(frozen=True)
class TableRows(Split):
    """The rows of a table: an image may have any number of captions, and a caption any number of images.

    `image_of` is a caption's first image, or -1; `ids` ends with an empty one, for -1.
    """

    pairs: Int32[np.ndarray, "pairs 2"] | None = None

    @cached_property
    def positives(self) -> Int32[np.ndarray, "pairs 2"]:
        assert self.pairs is not None
        return self.pairs

    @cached_property
    def captions_of(self) -> Positives:
        return self._answers["i2t"]

    @cached_property
    def _answers(self) -> dict[Direction, Positives]:
        counts = {"i2t": self.image_count, "t2i": self.caption_count}
        return {direction: positives_of(direction, self.positives, counts[direction]) for direction in DIRECTIONS}

    def answers_of(self, direction: Direction, query: int) -> Int32[np.ndarray, " right"]:
        return self._answers[direction][query]

    def are_paired(self, images: RowNumbers, captions: RowNumbers) -> Bool[np.ndarray, "*pairs"]:
        known = pair_keys(self.positives[:, 0], self.positives[:, 1], self.caption_count)
        keys = np.asarray(images, np.int64) * self.caption_count + np.asarray(captions, np.int64)
        return np.asarray(np.isin(keys, known))


class Pictures(Thumbnails):
    """Files of images below a folder, named by their ids."""

    def __init__(self, root: Path, split: Split) -> None:
        super().__init__(root, split)
        self._root = root

    def read(self, image: int) -> Picture | None:
        try:
            (file,) = find_pictures(self._root, [self._split.ids[image]])
            return small_picture(Path(file))
        except (ValueError, OSError) as error:
            self._refuse(self._root / "…", str(error))
        return None


def open_folders(folders: Sequence[Path], given: Given) -> Source:
    """Open tables that share their rows; refuse others, and texts or ids that do not fit."""
    manifests = [read_manifest(folder) for folder in folders]
    if any(len(sides_of(manifest)) == 1 for manifest in manifests):
        raise ValueError("a table of one set has no two sides to browse; look at it with `aoq inspect` or `aoq stats`.")
    first, manifest = folders[0], manifests[0]
    counts, pairs = count_rows(first, manifest), read_positives(first, manifest)
    for folder, other in zip(folders[1:], manifests[1:], strict=True):
        if count_rows(folder, other) != counts or not np.array_equal(read_positives(folder, other), pairs):
            raise ValueError(f"{first} and {folder} have different rows or pairs; browse one of them at a time.")
    if given.view is not None and len(folders) > 1:
        raise ValueError("--view belongs to one table, but several are named; name one.")
    split = _split(first, manifest, pairs, given)
    if given.image_root is None:
        pictures = Thumbnails(given.data or first, split)
    elif given.image_root.is_dir():
        pictures = Pictures(given.image_root, split)
    else:
        raise FileNotFoundError(f"{given.image_root} is no folder; give --image-root the one with the images' files.")
    key = f"table-{digest([str(first.absolute()), str(given.image_root), split.ids])[:8]}"
    tables = [open_table([folder.resolve().name], folder, split, given.view) for folder in folders]
    return Source(Album(key, split, pictures, CaptionSearch(split.captions)), tuple(tables), ())


def _split(folder: Path, manifest: dict[str, Any], pairs: np.ndarray, given: Given) -> TableRows:
    counts, names = count_rows(folder, manifest), read_ids(folder, manifest)
    images, captions = counts["images"], counts["captions"]
    texts, ids, boxes = given.texts, given.image_ids, None
    if given.split is not None:
        texts, ids, boxes = texts or given.split.captions, ids or given.split.ids, given.split.boxes
    for option, values, count in (("--texts", texts, captions), ("--image-ids", ids, images)):
        if values is not None and len(values) != count:
            raise ValueError(f"{option} has {len(values)} entries, but {folder} has {count} rows; give one per row.")
    ids = ids or names.get("images") or [str(row) for row in range(images)]
    texts = texts or names.get("captions") or [f"caption {row}" for row in range(captions)]
    image_of = np.full(captions, -1, np.int32)
    image_of[pairs[::-1, 1]] = pairs[::-1, 0]
    features = np.empty((images, 0, 0), np.float32)
    name = given.split.name if given.split else "table"
    return TableRows(name, features, list(texts), image_of, [*ids, ""], boxes, pairs=pairs)
