"""Matching pairs, as rows (image, caption) or grouped by anchor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64, Integer


@dataclass(frozen=True)
class Positives:
    """Positives grouped by anchor: those of anchor n are `ids[offsets[n]:offsets[n + 1]]`."""

    ids: Int32[np.ndarray, " pairs"]
    offsets: Int64[np.ndarray, " anchors_and_one"]

    def __getitem__(self, anchor: int) -> Int32[np.ndarray, " own"]:
        return self.ids[self.offsets[anchor] : self.offsets[anchor + 1]]

    @classmethod
    def of_pairs(
        cls, anchors: Integer[np.ndarray, " pairs"], candidates: Integer[np.ndarray, " pairs"], count: int
    ) -> Positives:
        """Group pairs by the `count` anchors; the ids of an anchor's candidates rise."""
        order = np.lexsort((candidates, anchors))
        return cls(candidates[order].astype(np.int32), group_offsets(np.bincount(anchors, minlength=count)))

    def rows(self, rows: Int64[np.ndarray, " some"]) -> Positives:
        """Select some anchors."""
        counts = np.diff(self.offsets)[rows]
        offsets = group_offsets(counts)
        places = np.arange(offsets[-1]) + np.repeat(self.offsets[rows] - offsets[:-1], counts)
        return Positives(self.ids[places], offsets)

    def without(self, rows: Integer[np.ndarray, " anchors"]) -> Positives:
        """Remove one candidate per anchor, if it is present."""
        others = self.ids != np.repeat(rows, np.diff(self.offsets))
        return Positives(self.ids[others], np.concatenate([[0], np.cumsum(others)])[self.offsets].astype(np.int64))

    @property
    def most(self) -> int:
        return int(np.diff(self.offsets).max(initial=0))

    def lowest(self, scores: Float32[np.ndarray, " pairs"]) -> Float32[np.ndarray, " anchors"]:
        """Return each anchor's lowest score; NaN if it has none."""
        lowest = np.full(len(self.offsets) - 1, np.nan, dtype=np.float32)
        has = np.diff(self.offsets) > 0
        lowest[has] = np.minimum.reduceat(scores, self.offsets[:-1][has]) if has.any() else []
        return lowest


def unique_pairs(positives: Integer[np.ndarray, "*shape"], images: int, captions: int) -> Int32[np.ndarray, "pairs 2"]:
    """Make unique pairs (image, caption), sorted by caption, then by image."""
    if positives.ndim == 1:
        if len(positives) != captions:
            raise ValueError(
                f"images are given for {len(positives)} captions, but there are {captions}; give one each."
            )
        if len(outside := np.flatnonzero((positives < -1) | (positives >= images))):
            raise ValueError(
                f"caption {outside[0]} is paired with image {positives[outside[0]]}, but images are numbered 0 to "
                f"{images - 1} (-1: no image)."
            )
        return matching_pairs(positives)
    if positives.ndim != 2 or positives.shape[1] != 2:
        raise ValueError(
            f"positives have shape {positives.shape}; give (n, 2) rows (image, caption), or one image per caption."
        )
    for name, rows, count in (("image", positives[:, 0], images), ("caption", positives[:, 1], captions)):
        if len(outside := np.flatnonzero((rows < 0) | (rows >= count))):
            raise ValueError(
                f"pair {outside[0]} names {name} {rows[outside[0]]}, but {name}s are numbered 0 to {count - 1}."
            )
    keys = _distinct(positives[:, 1].astype(np.int64) * images + positives[:, 0])
    return np.stack([keys % images, keys // images], axis=1).astype(np.int32)


def _distinct(keys: Int64[np.ndarray, " some"]) -> Int64[np.ndarray, " different"]:
    """Sort keys and drop repeats."""
    keys = np.sort(keys)  # np.unique hashes, and takes half a minute for six million
    return keys[np.diff(keys, prepend=-1) > 0]


def both_ways(pairs: Integer[np.ndarray, "rows 2"]) -> Int32[np.ndarray, "pairs 2"]:
    """Return the pairs within one set in both orders, each once, without pairs of a row with itself.

    >>> both_ways(np.array([[0, 2], [1, 1], [2, 0]])).tolist()
    [[2, 0], [0, 2]]
    """
    pairs, rows = pairs[pairs[:, 0] != pairs[:, 1]].astype(np.int64), int(pairs.max(initial=0)) + 1
    keys = _distinct(np.concatenate([pairs @ [1, rows], pairs @ [rows, 1]]))
    return np.stack([keys % rows, keys // rows], axis=1).astype(np.int32)


def with_itself(pairs: Int32[np.ndarray, "pairs 2"], rows: int) -> Int32[np.ndarray, "more 2"]:
    """Add the pair of each row with itself to the pairs within one set."""
    return np.concatenate([pairs, np.repeat(np.arange(rows, dtype=np.int32)[:, None], 2, axis=1)])


def matching_pairs(
    image_of: Integer[np.ndarray, " captions"], identity: Integer[np.ndarray, " images"] | None = None
) -> Int32[np.ndarray, "pairs 2"]:
    """Pair each caption with its image and with all images of the same `identity`; one of no image (-1) has no pair.

    >>> matching_pairs(np.array([1, -1, 0])).tolist()
    [[1, 0], [0, 2]]
    >>> matching_pairs(np.array([0, 1, 2], np.int32), np.array([5, 6, 5], np.int32)).tolist()
    [[0, 0], [2, 0], [1, 1], [0, 2], [2, 2]]
    """
    if identity is None:
        captions = np.flatnonzero(image_of >= 0)
        return np.stack([image_of[captions], captions], axis=1).astype(np.int32)
    return pairs_by_number(identity, identity[image_of])


def pairs_by_number(
    images: Integer[np.ndarray, " images"], captions: Integer[np.ndarray, " captions"]
) -> Int32[np.ndarray, "pairs 2"]:
    """Pair each caption with the images that have its number, sorted by caption, then by image."""
    order = np.argsort(images, kind="stable")
    first, after = (np.searchsorted(images[order], captions, side) for side in ("left", "right"))
    counts = after - first
    places = np.arange(counts.sum()) + np.repeat(first - group_offsets(counts)[:-1], counts)
    return np.stack([order[places], np.repeat(np.arange(len(captions)), counts)], axis=1).astype(np.int32)


def group_offsets(counts: Integer[np.ndarray, " groups"]) -> Int64[np.ndarray, " groups_and_one"]:
    """Return the offsets at which groups of these sizes start, and at which the last one ends.

    >>> group_offsets(np.array([2, 0, 1])).tolist()
    [0, 2, 2, 3]
    """
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
