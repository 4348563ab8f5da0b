"""Shared parts of towers that read captions."""

from __future__ import annotations

from abc import abstractmethod

from jaxtyping import Bool, Float
from torch import Tensor

from aoq.models.base import Captions
from aoq.models.towers.tower import Tower


class TextTower(Tower):
    """An encoder of captions, which are ids of the tokeniser that belongs to it."""

    has_ends = True
    """True if a caption's first and last ids are special tokens."""

    @abstractmethod
    def states(self, items: Captions) -> tuple[Float[Tensor, "captions words size"], Bool[Tensor, "captions words"]]:
        """The state at every id, zero at padding, and the mask of real ids."""
