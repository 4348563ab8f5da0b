"""Models of sentence-transformers that encode images: one vector each, from the model's own `encode`."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, UInt8
from torch import Tensor

from aoq.models.towers.preprocessing import Whole
from aoq.pipeline.extras import import_extra
from aoq.pipeline.loading import loading
from aoq.pipeline.prepare.extractors.extractor import Tokens
from aoq.pipeline.prepare.extractors.grid import GridExtractor

SEEN = Whole(1024, 2048)
"""Larger than any such model's input; its own processor resizes images."""


def open_sentence_transformers(model: str, tokens: Tokens = "pooled") -> GridExtractor:
    """Open a model on the hub or in a folder; its module has the library's interface."""
    name = f"sentence-transformers:{model}"
    if tokens == "patches":
        raise ValueError(
            f"{name} gives one vector an image, no patches; add --tokens pooled (in an experiment tokens = 'pooled')."
        )
    with loading(name, model):
        library = import_extra("sentence_transformers", "sentence-transformers", name)
        network = library.SentenceTransformer(model, device="cpu")
    if not network.supports("image"):
        raise ValueError(f"{name} encodes {' and '.join(network.modalities)}, and no images; choose one that does.")
    return GridExtractor.build(name, SEEN, network, lambda images: encode_images(network, images))


def encode_images(network: Any, images: UInt8[Tensor, "batch height width 3"]) -> Float[Tensor, "batch dims"]:
    pillow = import_extra("PIL.Image", "prepare", "reading images")
    pictures = [pillow.fromarray(image.cpu().numpy()) for image in images]
    return _encode(network, pictures)


def encode_texts(network: Any, texts: list[str]) -> Float[Tensor, "texts dims"]:
    # A caption given as a bare string would be opened if it is a path or an address of a picture.
    return _encode(network, [{"text": text} for text in texts])


def _encode(network: Any, inputs: list[Any]) -> Tensor:
    found: Tensor = network.encode(
        inputs, batch_size=len(inputs), convert_to_tensor=True, show_progress_bar=False, device=str(network.device)
    )
    return found
