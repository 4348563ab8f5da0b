"""A dual encoder: any image tower, any text tower, one space; VSE++ with today's encoders, or a CLIP."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from aoq.models.base import Captions, Code, EmbeddingModel, Images
from aoq.models.gpo import GPO
from aoq.models.normalise import l2_normalise
from aoq.models.regions import Projection, masked_mean, zero_masked
from aoq.models.text import TextEncoder
from aoq.models.towers.opening import open_image_tower, open_text_tower
from aoq.models.towers.tower import Pooling, SideName, Tower, named_towers


class DualEncoder(EmbeddingModel):
    """image = l2(W pool(image tower)), caption = l2(V pool(text tower)), similarity = their dot product.

    `image_tower` reads photographs, LIBRARY:NAME_OR_PATH (`towers.opening`); without one, an image is its region
    features. `text_tower` reads the ids of its own tokeniser; without one, a bidirectional GRU of `embedding_size`
    reads words.

    A side's pooling is "mean" (of patches, regions, word pieces or states), "gpo" (VSE∞'s, learnt), "cls" (the state
    of the class token), or "native": what the encoder was pretrained with, of the GRU its last state. Without `project`
    pooled vectors are compared as they are, as those of a pretrained pair: they must have `embedding_size` numbers.
    """

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        embedding_size: int = 512,
        word_size: int = 300,
        image_tower: str | None = None,
        text_tower: str | None = None,
        image_pooling: Pooling = "mean",
        text_pooling: Pooling = "mean",
        project: bool = True,
    ) -> None:
        super().__init__()
        image = _image_encoder(image_tower, image_pooling, feature_size)
        text = _text_encoder(text_tower, text_pooling, vocabulary_size, word_size, embedding_size)
        self.image = Side("image", image_tower, image, image_pooling, embedding_size if project else None)
        # The states of the GRU have the size already.
        projects = project and text_tower is not None
        self.text = Side("text", text_tower, text, text_pooling, embedding_size if projects else None)
        natives = (image_pooling, text_pooling) == ("native", "native")
        if not project and natives and image_tower != text_tower:
            raise ValueError(
                f"image_tower = {image_tower!r} and text_tower = {text_tower!r} share no space; leave `project` at "
                "true, or take both from one pair."
            )
        if {self.image.size, self.text.size} != {embedding_size}:
            raise ValueError(
                f"without `project` the vectors of images have {self.image.size} numbers, those of captions "
                f"{self.text.size}, and embedding_size is {embedding_size}; where they are all one size, set "
                "embedding_size to it, and otherwise leave `project` at true."
            )

    def encode_images(self, images: Images) -> Code:
        return Code(l2_normalise(self.image(images)))

    def encode_captions(self, captions: Captions) -> Code:
        return Code(l2_normalise(self.text(captions)))

    @property
    def towers(self) -> dict[SideName, Tower]:
        return named_towers(self.image.encoder, self.text.encoder)


def _image_encoder(tower: str | None, pooling: Pooling, feature_size: int) -> Tower | RegionFeatures:
    if tower is None:
        return RegionFeatures(feature_size)
    return open_image_tower(tower, native=pooling == "native")


def _text_encoder(
    tower: str | None, pooling: Pooling, vocabulary_size: int, word_size: int, embedding_size: int
) -> Tower | RecurrentText:
    if tower is None:
        return RecurrentText(vocabulary_size, word_size, embedding_size)
    return open_text_tower(tower, vocabulary_size=vocabulary_size, native=pooling == "native")


class Side(nn.Module):
    """An encoder, one vector of its states, and the projection into the common space."""

    def __init__(
        self,
        name: SideName,
        tower: str | None,
        encoder: Tower | RegionFeatures | RecurrentText,
        pooling: Pooling,
        embedding_size: int | None,
    ) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling
        if pooling not in encoder.poolings:
            raise ValueError(
                f'{name}_pooling = "{pooling}" is nothing that {tower or encoder.says} has; choose '
                f"{' or '.join(sorted(encoder.poolings))}."
            )
        self.pool = GPO() if pooling == "gpo" else None
        found = encoder.native_size if pooling == "native" else encoder.size
        assert found is not None  # of those whose poolings have "native"
        self.project = nn.Identity() if embedding_size is None else Projection(found, embedding_size)
        self.size = found if embedding_size is None else embedding_size

    def forward(self, items: Any) -> Float[Tensor, "items size"]:
        return self.project(self._pooled(items))

    def _pooled(self, items: Any) -> Float[Tensor, "items size"]:
        if self.pooling == "native":
            assert not isinstance(self.encoder, RegionFeatures)  # which do not allow it
            return self.encoder.native(items)
        if self.pooling == "cls":
            assert isinstance(self.encoder, Tower)  # nothing else allows it
            return self.encoder.first(items)
        states, mask = self.encoder.states(items)
        return masked_mean(states, mask) if self.pool is None else self.pool(states, mask)


class RegionFeatures(nn.Module):
    """Image side without a tower: unchanged region features."""

    says = "an image without a tower"
    poolings = frozenset[Pooling]({"mean", "gpo"})
    native_size = None

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def states(self, images: Images) -> tuple[Tensor, Bool[Tensor, "images regions"] | None]:
        return zero_masked(images.features, images.mask), images.mask


class RecurrentText(nn.Module):
    """Text side without a tower: a GRU over word embeddings, which are trained with it."""

    says = "a caption without a tower"
    poolings = frozenset[Pooling]({"mean", "gpo", "native"})

    def __init__(self, vocabulary_size: int, word_size: int, size: int) -> None:
        super().__init__()
        self.size = self.native_size = size
        self.words = TextEncoder(vocabulary_size, word_size=word_size, embedding_size=size, bidirectional=True)

    def states(self, captions: Captions) -> tuple[Tensor, Bool[Tensor, "captions words"]]:
        return self.words.states(captions)

    def native(self, captions: Captions) -> Float[Tensor, "captions size"]:
        return self.words.last(captions)
