"""The contents of a table in memory, its rows, and the check that a dataset folder is the one it was mined on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from aoq.pipeline.data.folder import Split
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import Positives, matching_pairs
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables import files
from aoq.pipeline.tables.pairs import Pairs, group_positives, pair_keys, pairing_sha256, pairs_sha256, require_one_each

_ORIGIN_REMEDY = "its rows differ or are in another order; give the data that the table was mined on, or mine again"


@dataclass(frozen=True, repr=False)
class TableContents:
    """Both directions' lists, with the true pairs and ids that belong to them."""

    i2t: NegativeLists
    t2i: NegativeLists
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Teacher and data of the scores, and for each of `directions` how it was searched."""
    positives: Pairs | None = None
    """True pairs, rows (image, caption), which no list holds; None if unknown. One set has them in both orders."""
    ids: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Ids of `images` and `captions`, one per row, if their vectors came with ids."""

    def __getitem__(self, direction: Direction) -> NegativeLists:
        return {"i2t": self.i2t, "t2i": self.t2i}[direction]

    @property
    def sides(self) -> tuple[str, ...]:
        """Names of the rows: ("images", "captions") by default, one name for one set."""
        return files.table_sides(self.manifest)

    @property
    def is_one_set(self) -> bool:
        return len(self.sides) == 1

    @property
    def directions(self) -> tuple[Direction, ...]:
        """Directions whose lists differ."""
        return files.table_directions(self.manifest)

    @property
    def true_pairs(self) -> Pairs:
        """Return `positives`; refuse a table that does not know them."""
        if self.positives is None:
            raise ValueError("the table does not say which pairs are true; mine it with them, or give it `positives`.")
        return self.positives

    def own(self, direction: Direction) -> Positives:
        """Group the true pairs by anchor."""
        return self._own[direction]

    @cached_property
    def _own(self) -> Mapping[Direction, Positives]:
        return {one: group_positives(one, self.true_pairs, len(self[one])) for one in DIRECTIONS}

    def mean_positive_scores(self) -> Float32[np.ndarray, " images"]:
        """Average the scores of each image's own captions; NaN for an image without any.

        The table keeps one score per caption. For a caption of several images it is the lowest, which then counts.
        """
        rows, scores, counts = self._own_scores("mean")
        sums = np.bincount(rows, weights=scores, minlength=len(counts))
        return np.divide(sums, counts, out=np.full(len(counts), np.nan), where=counts > 0).astype(np.float32)

    def highest_positive_scores(self) -> Float32[np.ndarray, " images"]:
        """Return the highest score of each image's own captions; NaN for an image without any."""
        rows, scores, counts = self._own_scores("highest")
        highest = np.where(counts > 0, np.float32(-np.inf), np.float32(np.nan))
        np.maximum.at(highest, rows, scores)
        return highest

    def _own_scores(
        self, kind: str
    ) -> tuple[Int64[np.ndarray, " own"], Float32[np.ndarray, " own"], Int64[np.ndarray, " images"]]:
        """Return the image and score of each pair, by image, and the number of each image's captions."""
        own = self.own("i2t")
        if self.is_one_set or not np.isfinite(self.t2i.positive_score[own.ids]).all():
            raise ValueError(
                f"the {kind} positive needs the score of every caption with its image, which this table lacks; compare "
                "with the lowest positive, or mine both directions of two sides."
            )
        counts = np.diff(own.offsets)
        return np.repeat(np.arange(len(counts)), counts), self.t2i.positive_score[own.ids], counts

    @property
    def sha256(self) -> dict[str, str]:
        """Hash of each direction's lists, from the manifest if it has one."""
        if "sha256" in files.search_facts(self.manifest, "i2t"):
            return files.table_hashes(self.manifest)
        return {direction: files.content_sha256(self[direction]) for direction in self.directions}


@dataclass(frozen=True)
class TableRows:
    """The rows of a table, by its own pairs; the items of one set are both images and captions."""

    table: TableContents
    texts: Sequence[str] | None = None
    image_ids: Sequence[str] | None = None
    caption_ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        require_one_each(self.texts, "texts", len(self.table.t2i))
        require_one_each(self.image_ids, "image ids", len(self.table.i2t))
        require_one_each(self.caption_ids, "caption ids", len(self.table.t2i))

    @cached_property
    def ids(self) -> Sequence[str]:
        return self.image_ids or self.table.ids.get("images") or [str(row) for row in range(len(self.table.i2t))]

    @cached_property
    def captions(self) -> Sequence[str]:
        return self.texts or [""] * len(self.table.t2i)

    @cached_property
    def named(self) -> Sequence[str]:
        """The captions' ids; empty if there are none."""
        ids, side = (self.image_ids, "images") if self.table.is_one_set else (self.caption_ids, "captions")
        return ids or self.table.ids.get(side) or ()

    @cached_property
    def image_of(self) -> Int32[np.ndarray, " captions"]:
        """The image of each caption, the first of several; -1 if there is none."""
        if self.table.is_one_set:
            return np.arange(len(self.table.t2i), dtype=np.int32)
        image_of, own = np.full(len(self.table.t2i), -1, np.int32), self.table.own("t2i")
        has_image = np.diff(own.offsets) > 0
        image_of[has_image] = own.ids[own.offsets[:-1][has_image]]
        return image_of

    @cached_property
    def captions_of(self) -> Positives:
        if self.table.is_one_set:
            return Positives(self.image_of, np.arange(len(self.image_of) + 1))
        return self.table.own("i2t")

    def find_answers(self, direction: Direction, query: int) -> Int32[np.ndarray, " right"]:
        """The positives of a query, rising."""
        return self.table.own(direction)[query]


ShownRows = Split | TableRows
"""Rows whose texts, ids and pairs an inspection shows."""


def require_origin(table: TableContents | Path, split: Split, fingerprint: str) -> None:
    """Refuse a split whose fingerprint, sizes, ids or pairs differ from those that the table has.

    `table` is in memory, or a folder, whose lists are not read.
    """
    if isinstance(table, TableContents):
        manifest, positives, ids = table.manifest, table.positives, table.ids.get("images", ())
        counts = {"images": len(table.i2t), "captions": len(table.t2i)}
    else:
        manifest = files.read_manifest(table)
        counts = files.count_rows(table, manifest)
        positives, ids = files.read_positives(table, manifest), files.read_ids(table, manifest).get("images", ())
    for side, count in (("images", split.image_count), ("captions", split.caption_count)):
        if count != counts[side]:
            raise ValueError(f"the split has {count} {side}, but the table {counts[side]}: {_ORIGIN_REMEDY}.")
    mined, captions = manifest.get("dataset"), split.caption_count
    # Tables mined from vectors without a data folder name their data by its pairs.
    by_pairs = [] if positives is None else [pairs_sha256(positives), pairing_sha256(positives, captions)]
    if mined is not None and mined not in (fingerprint, *by_pairs):
        prints = f"fingerprint {mined[:12]}, this split's is {fingerprint[:12]}"
        raise ValueError(f"the table was mined on other data ({prints}): {_ORIGIN_REMEDY}.")
    for row, (name, other) in enumerate(zip(ids, split.ids, strict=False)):  # a table may have no ids
        if name != other:
            raise ValueError(f"image {row} is {name!r} in the table and {other!r} in the split: {_ORIGIN_REMEDY}.")
    if positives is not None:
        pairs = matching_pairs(split.image_of)
        own, mined_keys = (pair_keys(rows[:, 0], rows[:, 1], captions) for rows in (pairs, positives))
        if len(missing := pairs[~np.isin(own, mined_keys)]):
            image, caption = missing[0]
            raise ValueError(f"caption {caption} has image {image} in the split, not in the table: {_ORIGIN_REMEDY}.")
