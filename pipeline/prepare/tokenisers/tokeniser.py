"""Contract of tokenisers: the ids of captions, and a folder that keeps the tokeniser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

LONGEST = 512
"""Most ids of a caption, where the tokeniser itself sets no lower limit."""


class Tokeniser(ABC):
    """Cuts captions into pieces, as a pretrained encoder of texts wants them."""

    file: str
    """File that only this library has in a folder that `save` wrote, or reads first."""

    @classmethod
    @abstractmethod
    def open(cls, name: str, model: str) -> Tokeniser:
        """Open the tokeniser of `model`; errors call it `name`.

        Raises:
            ValueError: for what cannot be loaded.
        """

    @classmethod
    @abstractmethod
    def load(cls, folder: Path) -> Tokeniser:
        """Read what `save` wrote."""

    @abstractmethod
    def save(self, folder: Path) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Ids lie below this number."""

    @abstractmethod
    def ids(self, captions: Sequence[str]) -> list[list[int]]:
        """Return the ids of every caption, cut if it is too long.

        Raises:
            ValueError: for a caption of which nothing is left.
        """
