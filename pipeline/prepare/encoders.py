"""Pretrained encoders of photographs and texts with a shared space: teachers that need no training here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aoq.models.towers.libraries import OpenClipSource, library_of, tokeniser_of_transformers
from aoq.pipeline.prepare.extractor import GridExtractor
from aoq.pipeline.prepare.extractors import (
    encode_by_sentence_transformers,
    open_sentence_transformers,
    open_transformers,
)

NO_TEXTS = "{} encodes no texts; choose one that does, such as a CLIP or a SigLIP."


@dataclass(frozen=True)
class Encoder:
    """Two towers; their vectors have one length and are compared by cosine."""

    images: GridExtractor
    """Pooled: one vector per image."""
    texts: Callable[[Sequence[str], torch.device], Float[Tensor, "texts dims"]]

    @property
    def name(self) -> str:
        return self.images.name


def open_encoder(name: str) -> Encoder:
    """Open the encoder of that name, on the CPU."""
    encoder = library_of(name, ENCODERS, "encoder of images and texts")(name)
    with torch.inference_mode():
        images, texts = encoder.images.dims, encoder.texts(["a"], torch.device("cpu")).shape[1]
    if images != texts:
        raise ValueError(f"{name} gives images {images} numbers and texts {texts}; they share no space.")
    return encoder


def _open_transformers(name: str) -> Encoder:
    images = open_transformers(name, "pooled")
    whole: Any = images.module
    if not hasattr(whole, "get_text_features"):
        raise ValueError(NO_TEXTS.format(name))
    tokenise = tokeniser_of_transformers(name)
    longest = whole.config.text_config.max_position_embeddings
    padding = "max_length" if whole.config.model_type.startswith("siglip") else True  # as SigLIP was trained

    def texts(captions: Sequence[str], device: torch.device) -> Tensor:
        tokens = tokenise(list(captions), padding=padding, truncation=True, max_length=longest, return_tensors="pt")
        output = whole.get_text_features(**tokens.to(device))
        return output if isinstance(output, Tensor) else output.pooler_output

    return Encoder(images, texts)


def _open_open_clip(name: str) -> Encoder:
    pair = OpenClipSource.open(name, is_file_allowed=True)
    (network, seen), tokenise = pair.load(), pair.tokeniser()

    def texts(captions: Sequence[str], device: torch.device) -> Tensor:
        vectors: Tensor = network.encode_text(tokenise(list(captions)).to(device))
        return vectors

    return Encoder(GridExtractor.build(name, seen, network, network.encode_image), texts)


def _open_sentence_transformers(name: str) -> Encoder:
    images = open_sentence_transformers(name)
    if not images.module.supports("text"):  # type: ignore[operator]
        raise ValueError(NO_TEXTS.format(name))

    def texts(captions: Sequence[str], _: torch.device) -> Tensor:
        # A caption given as a bare string would be opened if it is a path or an address of a picture.
        return encode_by_sentence_transformers(images.module, [{"text": text} for text in captions])

    return Encoder(images, texts)


ENCODERS: dict[str, Callable[[str], Encoder]] = {
    "transformers": _open_transformers,
    "open_clip": _open_open_clip,
    "sentence-transformers": _open_sentence_transformers,
}
