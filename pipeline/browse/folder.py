"""Tables' folders: their rows by the pairs, ids, texts and pictures that are given or kept beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int32, Int64

from aoq.pipeline.browse.search import CaptionSearch
from aoq.pipeline.browse.source import Album, Source, open_table
from aoq.pipeline.data.folder import Rows, Split
from aoq.pipeline.data.thumbnails import Picture, Thumbnails, small_picture
from aoq.pipeline.digests import digest
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.exchange.pictures import find_pictures
from aoq.pipeline.tables.files import count_rows, read_manifest, read_positives, sides_of
from aoq.pipeline.tables.ids import read_ids
from aoq.pipeline.tables.pairs import pair_keys, positives_of


@dataclass(frozen=True)
class Given:
    """Texts, ids and pictures given on the command line for a table's rows."""

    data: Path | None = None
    """A dataset folder, with pictures in thumbs/."""
    split: Split | None = None
    """One of its splits, with captions and ids."""
    texts: Sequence[str] | None = None
    """The captions', one a row."""
    image_ids: Sequence[str] | None = None
    image_root: Path | None = None
    """Folder of the images' files, each named by its id, with or without an ending."""
    view: Path | None = None


@dataclass(frozen=True)
class Listed(Split):
    """The rows of a table, which pairs them: an image may have any number of captions, and a caption of images.

    `image_of` is a caption's first image, -1 where it has none; `ids` ends with an empty one more, that of no image.
    """

    pairs: Int32[np.ndarray, "pairs 2"] | None = None

    @cached_property
    def positives(self) -> Int32[np.ndarray, "pairs 2"]:
        assert self.pairs is not None
        return self.pairs

    @cached_property
    def captions_of(self) -> Positives:
        return positives_of("i2t", self.positives, self.image_count)

    @cached_property
    def _own(self) -> dict[Direction, Positives]:
        counts = {"i2t": self.image_count, "t2i": self.caption_count}
        return {direction: positives_of(direction, self.positives, counts[direction]) for direction in DIRECTIONS}

    @cached_property
    def _keys(self) -> Int64[np.ndarray, " pairs"]:
        images, captions = self.positives.T
        return pair_keys(images, captions, self.caption_count)

    def answers_of(self, direction: Direction, query: int) -> Int32[np.ndarray, " right"]:
        return self._own[direction][query]

    def are_paired(self, images: Rows, captions: Rows) -> Bool[np.ndarray, "*pairs"]:
        keys = np.asarray(images, np.int64) * self.caption_count + np.asarray(captions, np.int64)
        return np.asarray(np.isin(keys, self._keys))


class Pictures(Thumbnails):
    """The files of images below a folder, by their ids."""

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
    """Open tables of one set of rows; refuse tables of others, and what is given for other rows."""
    manifests = [read_manifest(folder) for folder in folders]
    if any(len(sides_of(manifest)) == 1 for manifest in manifests):
        raise ValueError("a table of one set has no two sides to browse; look at it with `aoq inspect` or `aoq stats`.")
    first, manifest = folders[0], manifests[0]
    pairs = read_positives(first, manifest)
    for folder, other in zip(folders[1:], manifests[1:], strict=True):
        if count_rows(folder, other) != count_rows(first, manifest) or not np.array_equal(
            read_positives(folder, other), pairs
        ):
            raise ValueError(
                f"{first} and {folder} are tables of different rows or pairs; browse one of them at a time."
            )
    if given.view is not None and len(folders) > 1:
        raise ValueError("--view is of one table, and several are named; name one.")
    split = _split(first, manifest, pairs, given)
    pictures = _pictures(first, split, given)
    key = f"table-{digest([str(first.absolute()), str(given.image_root), split.ids])[:8]}"
    album = Album(key, split, pictures, CaptionSearch(split.captions))
    return Source(
        album, tuple(open_table([folder.resolve().name], folder, split, given.view) for folder in folders), ()
    )


def _split(folder: Path, manifest: dict[str, object], pairs: np.ndarray, given: Given) -> Split:
    counts, names = count_rows(folder, manifest), read_ids(folder, manifest)
    images, captions = counts["images"], counts["captions"]
    texts, ids, boxes = given.texts, given.image_ids, None
    if given.split is not None:
        texts, ids, boxes = texts or given.split.captions, ids or given.split.ids, given.split.boxes
    for option, what, there, count in (("--texts", "texts", texts, captions), ("--image-ids", "ids", ids, images)):
        if there is not None and len(there) != count:
            raise ValueError(
                f"{len(there)} {what} are given, and {folder} has {count} rows of them; give {option} one a row."
            )
    ids = ids or names.get("images") or [str(row) for row in range(images)]
    texts = texts or names.get("captions") or [f"caption {row}" for row in range(captions)]
    image_of = np.full(captions, -1, np.int32)
    image_of[pairs[::-1, 1]] = pairs[::-1, 0]
    features = np.empty((images, 0, 0), np.float32)
    name = given.split.name if given.split else "table"
    return Listed(name, features, list(texts), image_of, [*ids, ""], boxes, pairs=pairs)


def _pictures(folder: Path, split: Split, given: Given) -> Thumbnails:
    if given.image_root is None:
        return Thumbnails(given.data or folder, split)
    if not given.image_root.is_dir():
        raise FileNotFoundError(f"{given.image_root} is no folder; give --image-root the one with the images' files.")
    return Pictures(given.image_root, split)
