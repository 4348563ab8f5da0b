"""Registry of feature extractors for photographs, by name."""

from __future__ import annotations

from collections.abc import Callable

from aoq.pipeline.prepare.extractors.by_open_clip import open_open_clip
from aoq.pipeline.prepare.extractors.by_sentence_transformers import open_sentence_transformers
from aoq.pipeline.prepare.extractors.by_timm import open_timm
from aoq.pipeline.prepare.extractors.by_torchvision import open_torchvision
from aoq.pipeline.prepare.extractors.by_transformers import open_transformers
from aoq.pipeline.prepare.extractors.efficientnet_lite import NAME, open_efficientnet
from aoq.pipeline.prepare.extractors.extractor import Extractor, Tokens

DEFAULT = NAME
LIBRARIES: dict[str, Callable[[str, Tokens], Extractor]] = {
    "timm": open_timm,
    "transformers": open_transformers,
    "open_clip": open_open_clip,
    "sentence-transformers": open_sentence_transformers,
    "torchvision": open_torchvision,
}
"""Openers by the part of a name before the colon; each takes the part after it."""


def open_extractor(name: str, tokens: Tokens = "patches") -> Extractor:
    """Open the extractor of that name, on the CPU.

    Raises:
        ValueError: for an unknown name, or weights that cannot be loaded.
        ImportError: names the extra that brings its library.
    """
    if name == NAME:
        return open_efficientnet(tokens)
    library, _, model = name.partition(":")
    if library not in LIBRARIES or not model:
        known = ", ".join([NAME, *(f"{library}:NAME" for library in LIBRARIES)])
        raise ValueError(f"there is no extractor {name!r}; known are {known}.")
    return LIBRARIES[library](model, tokens)
