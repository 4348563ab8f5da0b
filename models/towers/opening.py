"""Open towers by name, LIBRARY:NAME_OR_PATH."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from aoq.models.towers.image_tower import ImageTower
from aoq.models.towers.open_clip_image import OpenClipImage
from aoq.models.towers.open_clip_text import OpenClipText
from aoq.models.towers.static_text import StaticText
from aoq.models.towers.text_tower import TextTower
from aoq.models.towers.timm_image import TimmImage
from aoq.models.towers.transformer_image import TransformerImage
from aoq.models.towers.transformer_text import TransformerText

T = TypeVar("T")
IMAGE_TOWERS: dict[str, Callable[..., ImageTower]] = {
    "timm": TimmImage,
    "transformers": TransformerImage,
    "open_clip": OpenClipImage,
}
TEXT_TOWERS: dict[str, Callable[..., TextTower]] = {
    "transformers": TransformerText,
    "open_clip": OpenClipText,
    "static": StaticText,
}


def open_image_tower(name: str, *, native: bool = False) -> ImageTower:
    """Open an encoder of photographs with random weights; `native` adds the layers that make its own vector.

    Raises:
        ValueError: for an unknown name, or a configuration that cannot be loaded.
        ImportError: names the extra that brings its library.
    """
    return _library("image", name, IMAGE_TOWERS)(name, native=native)


def open_text_tower(
    name: str, *, vocabulary_size: int, embedding_size: int | None = None, native: bool = False
) -> TextTower:
    """Open an encoder of captions like `open_image_tower`; a linear layer maps its states to `embedding_size`."""
    kind = _library("text", name, TEXT_TOWERS)
    return kind(name, vocabulary_size=vocabulary_size, embedding_size=embedding_size, native=native)


def _library(side: str, name: str, known: Mapping[str, T]) -> T:
    library, _, model = name.partition(":")
    if library not in known or not model:
        names = ", ".join(f"{library}:NAME_OR_PATH" for library in known)
        raise ValueError(f"there is no {side} tower {name!r}; known is {names}.")
    return known[library]
