"""A table's rows, as far as the table knows them: its true pairs, with ids and texts that are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int32

from aoq.pipeline.search.positives import Positives
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.table import NegativeTable


@runtime_checkable
class Rows(Protocol):
    """Interface of rows for an inspection; a data set's split has it, and a table."""

    @property
    def ids(self) -> Sequence[str]:
        """The images' ids."""

    @property
    def captions(self) -> Sequence[str]:
        """The captions' texts; empty ones where nobody gave them."""

    @property
    def image_of(self) -> Int32[np.ndarray, " captions"]:
        """The image of each caption, the first of several; -1 where there is none."""

    @property
    def captions_of(self) -> Positives:
        """The captions that describe each image."""

    def answers_of(self, direction: Direction, query: int) -> Int32[np.ndarray, " right"]:
        """The captions that are right for an image (i2t), or the images that are for a caption, rising."""


@dataclass(frozen=True)
class TableRows:
    """The rows of a table by its own pairs; of one set, its items stand for images and captions alike.

    Raises:
        ValueError: for texts or ids that are not one a row.
    """

    table: NegativeTable
    texts: Sequence[str] | None = None
    image_ids: Sequence[str] | None = None
    caption_ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        images, captions = len(self.table.i2t), len(self.table.t2i)
        for what, given, count in (
            ("texts", self.texts, captions),
            ("image ids", self.image_ids, images),
            ("caption ids", self.caption_ids, captions),
        ):
            if given is not None and len(given) != count:
                raise ValueError(f"{len(given)} {what} are given, and the table is of {count}; give one each.")

    @cached_property
    def ids(self) -> Sequence[str]:
        return self.image_ids or self.table.ids.get("images") or [str(row) for row in range(len(self.table.i2t))]

    @cached_property
    def captions(self) -> Sequence[str]:
        return self.texts or [""] * len(self.table.t2i)

    @cached_property
    def named(self) -> Sequence[str]:
        """The captions' ids; none where nobody gave them."""
        if self.table.is_one_set:
            return self.image_ids or self.table.ids.get("images") or ()
        return self.caption_ids or self.table.ids.get("captions") or ()

    @cached_property
    def image_of(self) -> Int32[np.ndarray, " captions"]:
        count = len(self.table.t2i)
        if self.table.is_one_set:
            return np.arange(count, dtype=np.int32)
        found, own = np.full(count, -1, np.int32), self.table.own("t2i")
        has = np.diff(own.offsets) > 0
        found[has] = own.ids[own.offsets[:-1][has]]
        return found

    @cached_property
    def captions_of(self) -> Positives:
        count = len(self.table.i2t)
        if self.table.is_one_set:
            return Positives(np.arange(count, dtype=np.int32), np.arange(count + 1))
        return self.table.own("i2t")

    def answers_of(self, direction: Direction, query: int) -> Int32[np.ndarray, " right"]:
        return self._own[direction][query]

    @cached_property
    def _own(self) -> dict[Direction, Positives]:
        return {"i2t": self.table.own("i2t"), "t2i": self.table.own("t2i")}
