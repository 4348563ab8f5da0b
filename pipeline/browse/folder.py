"""Open tables by their folders, with texts, ids and pictures from the command line or beside the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int32

from aoq.pipeline.browse.source import Album, CaptionSearch, Gallery, open_table_folder
from aoq.pipeline.data.folder import RowNumbers, Split
from aoq.pipeline.data.thumbnails import Picture, Thumbnails, small_picture
from aoq.pipeline.files import digest
from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.exchange.pictures import find_pictures
from aoq.pipeline.tables.files import count_rows, read_ids, read_manifest, read_positives, sides_of
from aoq.pipeline.tables.pairs import pair_keys, positives_of


def open_folders(
    folders: Sequence[Path],
    *,
    data: Path | None = None,
    split: Split | None = None,
    texts: Sequence[str] | None = None,
    image_ids: Sequence[str] | None = None,
    image_root: Path | None = None,
    view: Path | None = None,
) -> Gallery:
    """Open tables that share their rows; refuse others, and texts or ids that do not fit.

    Captions and ids are those of a `split` of the dataset folder `data`, whose pictures are in thumbs/, unless texts
    or ids are given. An image's file below `image_root` is its id, with or without an extension.
    """
    manifests = [read_manifest(folder) for folder in folders]
    if any(len(sides_of(manifest)) == 1 for manifest in manifests):
        raise ValueError("a table of one set has no two sides to browse; look at it with `aoq inspect` or `aoq stats`.")
    first, counts, pairs = folders[0], count_rows(folders[0], manifests[0]), read_positives(folders[0], manifests[0])
    for folder, other in zip(folders[1:], manifests[1:], strict=True):
        if count_rows(folder, other) != counts or not np.array_equal(read_positives(folder, other), pairs):
            raise ValueError(f"{first} and {folder} have different rows or pairs; browse one of them at a time.")
    if view is not None and len(folders) > 1:
        raise ValueError("--view belongs to one table, but several are named; name one.")
    rows = _name_rows(first, manifests[0], pairs, split, texts, image_ids)
    if image_root is not None and not image_root.is_dir():
        raise FileNotFoundError(f"{image_root} is no folder; give --image-root the one with the images' files.")
    pictures = Pictures(image_root, rows) if image_root else Thumbnails(data or first, rows)
    key = f"table-{digest([str(first.absolute()), str(image_root), rows.ids])[:8]}"
    tables = tuple(open_table_folder([folder.resolve().name], folder, rows, view) for folder in folders)
    return Gallery(Album(key, rows, pictures, CaptionSearch(rows.captions)), tables, ())


def _name_rows(
    folder: Path,
    manifest: dict[str, Any],
    pairs: np.ndarray,
    split: Split | None,
    texts: Sequence[str] | None,
    ids: Sequence[str] | None,
) -> FolderRows:
    counts, kept = count_rows(folder, manifest), read_ids(folder, manifest)
    images, captions = counts["images"], counts["captions"]
    if split is not None:
        texts, ids = texts or split.captions, ids or split.ids
    for option, values, count in (("--texts", texts, captions), ("--image-ids", ids, images)):
        if values is not None and len(values) != count:
            raise ValueError(f"{option} has {len(values)} entries, but {folder} has {count} rows; give one per row.")
    ids = ids or kept.get("images") or [str(row) for row in range(images)]
    texts = texts or kept.get("captions") or [f"caption {row}" for row in range(captions)]
    image_of = np.full(captions, -1, np.int32)
    image_of[pairs[::-1, 1]] = pairs[::-1, 0]
    features, boxes = np.empty((images, 0, 0), np.float32), split.boxes if split else None
    name = split.name if split else "table"
    return FolderRows(name, features, list(texts), image_of, [*ids, ""], boxes, pairs=pairs)


@dataclass(frozen=True)
class FolderRows(Split):
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
        return positives_of("i2t", self.positives, self.image_count)

    @cached_property
    def _images_of(self) -> Positives:
        return positives_of("t2i", self.positives, self.caption_count)

    def answers_of(self, direction: Direction, query: int) -> Int32[np.ndarray, " right"]:
        return self.captions_of[query] if direction == "i2t" else self._images_of[query]

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
