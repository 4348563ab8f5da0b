"""A dual encoder: any image tower, any text tower, one space; VSE++ with today's encoders, or a CLIP."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from aoq.models.base import Captions, Code, EmbeddingModel, Images, Size
from aoq.models.layers import Projection, TextEncoder, l2_normalise, masked_mean, zero_masked
from aoq.models.towers.image_towers import open_image_tower
from aoq.models.towers.text_towers import open_text_tower
from aoq.models.towers.tower import PoolingName, SideName, Tower, named_towers
from aoq.models.vse_infinity import GPO


class DualEncoder(EmbeddingModel):
    """image = l2(W pool(image tower)), caption = l2(V pool(text tower)), similarity = their dot product.

    Args:
        image_tower: A pretrained encoder of photographs, `timm:`, `transformers:` or `open_clip:`; by default images
            are their region features.
        text_tower: A pretrained encoder of captions, `transformers:`, `open_clip:` or `static:`; by default a
            bidirectional GRU reads words.
        image_pooling: `mean`, the class token (`cls`), VSE∞'s learnt pooling (`gpo`), or the one that the tower was
            pretrained with (`native`).
        text_pooling: Likewise; `native` for the GRU is its last state.
        project: A linear layer into the common space; `false` compares pooled vectors as they are, for a pretrained
            pair. They must have `embedding_size` numbers.
    """

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        embedding_size: Size = 512,
        word_size: Size = 300,
        image_tower: str | None = None,
        text_tower: str | None = None,
        image_pooling: PoolingName = "mean",
        text_pooling: PoolingName = "mean",
        project: bool = True,
    ) -> None:
        super().__init__()
        image: Tower | RegionFeatures = RegionFeatures(feature_size)
        if image_tower is not None:
            image = open_image_tower(image_tower, native=image_pooling == "native")
        text: Tower | RecurrentText
        if text_tower is None:
            text = RecurrentText(vocabulary_size, word_size, embedding_size)
        else:
            text = open_text_tower(text_tower, vocabulary_size=vocabulary_size, native=text_pooling == "native")
        size = embedding_size if project else None
        self.image = PooledEncoder("image", image_tower, image, image_pooling, size)
        # The GRU's states already have this size.
        self.text = PooledEncoder("text", text_tower, text, text_pooling, size if text_tower else None)
        if not project and image_pooling == text_pooling == "native" and image_tower != text_tower:
            raise ValueError(
                f"image_tower = {image_tower!r} and text_tower = {text_tower!r} share no space; leave `project` at "
                "true, or take both from one pair."
            )
        if {self.image.size, self.text.size} != {embedding_size}:
            raise ValueError(
                f"without `project` image vectors have {self.image.size} numbers, caption vectors {self.text.size}, "
                f"and embedding_size is {embedding_size}; set it to their common size, or leave `project` at true."
            )

    def encode_images(self, images: Images) -> Code:
        return Code(l2_normalise(self.image(images)))

    def encode_captions(self, captions: Captions) -> Code:
        return Code(l2_normalise(self.text(captions)))

    @property
    def towers(self) -> dict[SideName, Tower]:
        return named_towers(self.image.encoder, self.text.encoder)


class PooledEncoder(nn.Module):
    """An encoder, one vector of its states, and the projection into the common space."""

    def __init__(
        self, side: SideName, tower: str | None, encoder: Any, pooling: PoolingName, embedding_size: int | None
    ) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        if pooling not in encoder.poolings:
            raise ValueError(
                f'{tower or encoder.description} does not support {side}_pooling = "{pooling}"; choose '
                f"{' or '.join(sorted(encoder.poolings))}."
            )
        self.pool = GPO() if pooling == "gpo" else None
        size: int = encoder.native_size if pooling == "native" else encoder.size
        self.project = nn.Identity() if embedding_size is None else Projection(size, embedding_size)
        self.size = size if embedding_size is None else embedding_size

    def forward(self, items: Any) -> Float[Tensor, "items size"]:
        if self.pooling == "native":
            return self.project(self.encoder.native(items))
        if self.pooling == "cls":
            return self.project(self.encoder.first(items))
        states, mask = self.encoder.states(items)
        return self.project(masked_mean(states, mask) if self.pool is None else self.pool(states, mask))


class RegionFeatures(nn.Module):
    """Image side without a tower: unchanged region features."""

    description, poolings = "an image without a tower", frozenset[PoolingName]({"mean", "gpo"})

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def states(self, images: Images) -> tuple[Tensor, Bool[Tensor, "images regions"] | None]:
        return zero_masked(images.features, images.mask), images.mask


class RecurrentText(nn.Module):
    """Text side without a tower: a GRU over word embeddings, which are trained with it."""

    description, poolings = "a caption without a tower", frozenset[PoolingName]({"mean", "gpo", "native"})

    def __init__(self, vocabulary_size: int, word_size: int, size: int) -> None:
        super().__init__()
        self.size = self.native_size = size
        self.words = TextEncoder(vocabulary_size, word_size=word_size, embedding_size=size, bidirectional=True)
        self.states, self.native = self.words.states, self.words.last
