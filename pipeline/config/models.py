"""The [model] section: options of each similarity model, without importing those written out here."""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt, SerializeAsAny

from aoq.pipeline.config.section import NamedSection, derive_section, keyword_options, registered

if TYPE_CHECKING:
    from aoq.models.base import MatchingModel

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Steps = Annotated[PositiveInt, Field(le=1000)]
NO_OPTIONS = ("feature_size", "vocabulary_size", "regions", "word_dropout")
"""Constructor arguments that come from the data, or from a subclass."""


class ModelSection(NamedSection):
    """Options of a model: written out here, or the constructor's for any other one in `aoq.models.MODELS`."""

    makes_embeddings: ClassVar[bool] = True
    """True if a search index can serve the model; if not, it cannot be the teacher of a table."""
    attends: ClassVar[bool] = False
    """True if words and regions attend to each other: constraints and attention metrics need such models."""

    @property
    def dimensions(self) -> int:
        """Length of the vectors that are searched."""
        size = getattr(self, "embedding_size", None)
        if size is None:
            raise ValueError(
                f"[model] {self.name} does not say how long its vectors are; call its constructor's keyword for that "
                "`embedding_size`."
            )
        return int(size)

    @classmethod
    def kind(cls, name: str) -> type[ModelSection]:
        if name in SECTIONS:
            return SECTIONS[name]
        from aoq.models import MODELS  # late: planning models written out here needs no torch

        return _section_of(name, registered("model", name, MODELS, SECTIONS))


@cache
def _section_of(name: str, model: type[MatchingModel]) -> type[ModelSection]:
    """Derive a section from the constructor's keywords and, through its `**options`, those of its base classes."""
    from aoq.models.base import EmbeddingModel

    options: dict[str, tuple[Any, Any]] = {}
    for constructor in filter(None, (vars(owner).get("__init__") for owner in model.__mro__)):
        options = keyword_options(constructor) | options
        if not any(each.kind is each.VAR_KEYWORD for each in signature(constructor).parameters.values()):
            break
    chosen = {option: value for option, value in options.items() if option not in NO_OPTIONS}
    makes_embeddings = issubclass(model, EmbeddingModel)
    return derive_section(name, ModelSection, chosen, makes_embeddings=makes_embeddings, attends=model.attends)


class Encoders(ModelSection):
    embedding_size: PositiveInt = 1024
    word_size: PositiveInt = 300


class VSEpp(Encoders):
    bidirectional: bool = False


class VSRN(Encoders):
    embedding_size: PositiveInt = 2048
    variant: Literal["coco", "f30k"] = "coco"
    normalise_axis: Literal["regions", "features"] = "regions"
    absolute: bool = False
    normalise_images: bool = True
    caption_weight: Annotated[float, Field(ge=0.0)] = 1.0
    caption_hidden_size: PositiveInt = 512
    caption_word_size: PositiveInt = 300
    caption_max_length: Annotated[int, Field(ge=3)] = 60
    caption_dropout: Fraction = 0.2
    caption_bidirectional: bool = False


class Fragments(Encoders):
    """Options shared by SCAN and its descendants: their encoders."""

    makes_embeddings = False
    attends = True
    bidirectional: bool = True
    normalise_images: bool = True
    normalise_captions: bool = True
    weight_norm: bool = False
    image_tower: str | None = None
    text_tower: str | None = None


class SCAN(Fragments):
    direction: Literal["t2i", "i2t"] = "t2i"
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = "LogSumExp"
    normalisation: Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"] = (
        "clipped_l2norm"
    )
    temperature: PositiveFloat | None = None
    temperature_lse: PositiveFloat = 6.0


class PFAN(SCAN):
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = "Mean"
    position_size: PositiveInt = 200
    grid: PositiveInt = 16
    mask_padding: bool = False


class BFAN(Fragments):
    focal: Literal["equal", "prob"] = "equal"
    temperature: PositiveFloat = 20.0


class SAF(Fragments):
    similarity_size: PositiveInt = 256
    dropout: Fraction = 0.4


class SGR(SAF):
    steps: Steps = 3


class NAAF(Fragments):
    temperature: PositiveFloat = 20.0
    alpha: PositiveFloat = 2.0
    alpha_schedule: Literal["fixed", "adaptive"] = "fixed"


class IMRAM(Fragments):
    mode: Literal["text", "image", "full"] = "full"
    steps: Steps = 3
    temperature: PositiveFloat = 9.0


class VSEInfinity(Encoders):
    size_augmentation: Fraction = 0.2
    augment_words: Literal["drop", "mask"] = "drop"
    text_tower: str | None = None
    image_tower: str | None = None


Pooling = Literal["cls", "mean", "gpo", "native"]


class DualEncoder(Encoders):
    embedding_size: PositiveInt = 512
    image_tower: str | None = None
    text_tower: str | None = None
    image_pooling: Pooling = "mean"
    text_pooling: Pooling = "mean"
    project: bool = True


Model = SerializeAsAny[ModelSection]
SECTIONS: dict[str, type[ModelSection]] = {
    section.__name__.lower(): section for section in (VSEpp, VSRN, SCAN, PFAN, BFAN, SGR, SAF, NAAF, IMRAM)
} | {"vse_infinity": VSEInfinity, "dual_encoder": DualEncoder}
