"""Pretrained encoders of photographs and texts with a shared space: teachers that need no training here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading
from aoq.pipeline.prepare.extractors.by_open_clip import load_open_clip
from aoq.pipeline.prepare.extractors.by_sentence_transformers import encode_texts, open_sentence_transformers
from aoq.pipeline.prepare.extractors.by_transformers import open_transformers
from aoq.pipeline.prepare.extractors.grid import GridExtractor

EncodeTexts = Callable[[Sequence[str], torch.device], Float[Tensor, "texts dims"]]
KNOWN = "transformers:NAME_OR_PATH, open_clip:NAME/TAG and sentence-transformers:NAME_OR_PATH"


@dataclass(frozen=True)
class Encoder:
    """Two towers; their vectors have one length and are compared by cosine."""

    images: GridExtractor
    """Pooled: one vector per image."""
    texts: EncodeTexts

    @property
    def name(self) -> str:
        return self.images.name


def open_encoder(name: str) -> Encoder:
    """Open the encoder of that name, on the CPU.

    Raises:
        ValueError: for an unknown name, weights that cannot be loaded, a model without a text encoder, and one whose
            sides have different sizes.
        ImportError: names the extra that brings its library.
    """
    library, _, model = name.partition(":")
    if library not in OPENERS or not model:
        raise ValueError(f"there is no encoder {name!r} of images and texts; known are {KNOWN}.")
    encoder = OPENERS[library](model)
    with torch.inference_mode():
        sizes = encoder.images.dims, encoder.texts(["a"], torch.device("cpu")).shape[1]
    if sizes[0] != sizes[1]:
        raise ValueError(f"{name} gives images {sizes[0]} numbers and texts {sizes[1]}; they share no space.")
    return encoder


def _transformers(model: str) -> Encoder:
    images = open_transformers(model, "pooled")
    whole: Any = images.module
    if not hasattr(whole, "get_text_features"):
        raise ValueError(f"{images.name} encodes no texts; choose one that does, such as a CLIP or a SigLIP.")
    with loading(images.name, model):
        tokenise = import_extra("transformers", "transformers", images.name).AutoTokenizer.from_pretrained(model)
    longest = whole.config.text_config.max_position_embeddings
    padding = "max_length" if whole.config.model_type.startswith("siglip") else True  # as SigLIP was trained

    def texts(captions: Sequence[str], device: torch.device) -> Tensor:
        tokens = tokenise(list(captions), padding=padding, truncation=True, max_length=longest, return_tensors="pt")
        found = whole.get_text_features(**tokens.to(device))
        return found if isinstance(found, Tensor) else found.pooler_output

    return Encoder(images, texts)


def _open_clip(model: str) -> Encoder:
    name, network, seen, tokenise = load_open_clip(model)

    def texts(captions: Sequence[str], device: torch.device) -> Tensor:
        found: Tensor = network.encode_text(tokenise(list(captions)).to(device))
        return found

    return Encoder(GridExtractor.build(name, seen, network, network.encode_image), texts)


def _sentence_transformers(model: str) -> Encoder:
    images = open_sentence_transformers(model)
    if not images.module.supports("text"):  # type: ignore[operator]
        raise ValueError(f"{images.name} encodes no texts; choose one that does, such as a CLIP or a SigLIP.")
    return Encoder(images, lambda captions, _: encode_texts(images.module, list(captions)))


OPENERS: dict[str, Callable[[str], Encoder]] = {
    "transformers": _transformers,
    "open_clip": _open_clip,
    "sentence-transformers": _sentence_transformers,
}
