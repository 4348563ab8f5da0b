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
    """Numbers in the vectors that are compared."""
    word_size: PositiveInt = 300
    """Numbers in a word vector."""


class VSEpp(Encoders):
    bidirectional: bool = False
    """A GRU in both directions over the words."""


class VSRN(Encoders):
    embedding_size: PositiveInt = 2048
    """Numbers in the vectors that are compared."""
    variant: Literal["coco", "f30k"] = "coco"
    """Published variant: `coco` normalises projected regions; `f30k` ends in a BatchNorm instead."""
    normalise_axis: Literal["regions", "features"] = "regions"
    """`regions`: each channel over the regions, as the official code does. `features`: each region, as was meant."""
    absolute: bool = False
    """Compare absolute values."""
    normalise_images: bool = True
    """Divide image vectors by their norm."""
    caption_weight: Annotated[float, Field(ge=0.0)] = 1.0
    """The weight of the captioning loss; 0 leaves the captioner out."""
    caption_hidden_size: PositiveInt = 512
    """Numbers in the captioner's state."""
    caption_word_size: PositiveInt = 300
    """Numbers in the captioner's word vectors."""
    caption_max_length: Annotated[int, Field(ge=3)] = 60
    """Words of a caption that it learns to write, at most."""
    caption_dropout: Fraction = 0.2
    """Dropout in the captioner."""
    caption_bidirectional: bool = False
    """A captioner that reads regions in both directions."""


class Fragments(Encoders):
    """Options shared by SCAN and its descendants: their encoders."""

    makes_embeddings = False
    attends = True
    bidirectional: bool = True
    """A GRU in both directions over the words; their states are averaged."""
    normalise_images: bool = True
    """Divide region vectors by their norm."""
    normalise_captions: bool = True
    """Divide word vectors by their norm."""
    weight_norm: bool = False
    """Learn the norm of the regions' projection apart from its direction."""
    image_tower: str | None = None
    """A pretrained encoder of photographs, `timm:`, `transformers:` or `open_clip:`: its patches are the regions."""
    text_tower: str | None = None
    """A pretrained encoder of captions, `transformers:`, `open_clip:`, `static:`, in place of the GRU."""


class SCAN(Fragments):
    direction: Literal["t2i", "i2t"] = "t2i"
    """`t2i`: words attend to regions. `i2t`: regions attend to words."""
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = "LogSumExp"
    """Function that makes one similarity of the cosines of all queries."""
    normalisation: Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"] = (
        "clipped_l2norm"
    )
    """Normalisation of products along the queries, before the softmax."""
    temperature: PositiveFloat | None = None
    """Temperature of the attention; by default 9 for `t2i`, 4 for `i2t`."""
    temperature_lse: PositiveFloat = 6.0
    """Sharpness of `LogSumExp`: the higher, the nearer to the maximum."""


class PFAN(SCAN):
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = "Mean"
    """Function that makes one similarity of the cosines of all queries."""
    position_size: PositiveInt = 200
    """Numbers in the position vector of a region."""
    grid: PositiveInt = 16
    """An image is cut into this many blocks a side."""
    mask_padding: bool = False
    """Leave out the unused places of a region's list of blocks; as published they take part."""


class BFAN(Fragments):
    focal: Literal["equal", "prob"] = "equal"
    """A fragment is relevant where its weight is above the mean (`equal`), or above the mean weighted by confidence
    (`prob`)."""
    temperature: PositiveFloat = 20.0
    """Temperature of the attention."""


class SAF(Fragments):
    similarity_size: PositiveInt = 256
    """Numbers in a similarity vector."""
    dropout: Fraction = 0.4
    """Dropout of words and of pooled vectors."""


class SGR(SAF):
    steps: Steps = 3
    """Reasoning steps over the similarity graph."""


class NAAF(Fragments):
    temperature: PositiveFloat = 20.0
    """Temperature of the attention."""
    alpha: PositiveFloat = 2.0
    """The cost of calling a mismatched pair matched, when the threshold is learnt."""
    alpha_schedule: Literal["fixed", "adaptive"] = "fixed"
    """`adaptive`: alpha* of the paper's supplement, in place of `alpha`."""


class IMRAM(Fragments):
    mode: Literal["text", "image", "full"] = "full"
    """Side that asks: words, regions, or both."""
    steps: Steps = 3
    """Rounds of attention, with a memory between them."""
    temperature: PositiveFloat = 9.0
    """Temperature of the attention."""


class MaxSim(Fragments):
    direction: Literal["t2i", "i2t", "both"] = "t2i"
    """`t2i`: the best region of each word. `i2t`: the best word of each region. `both`: the mean of the two."""
    aggregation: Literal["Mean", "Sum"] = "Mean"
    """Function that makes one similarity of the best matches; the paper's is `Sum`."""


class VSEInfinity(Encoders):
    size_augmentation: Fraction = 0.2
    """Probability that a region or word is left out in training."""
    augment_words: Literal["drop", "mask"] = "drop"
    """`mask`: as in the released code, some words are replaced and not left out."""
    text_tower: str | None = None
    """A pretrained encoder of captions, `transformers:`, `open_clip:`, `static:`, in place of the GRU."""
    image_tower: str | None = None
    """A pretrained encoder of photographs, `timm:`, `transformers:` or `open_clip:`: its patches are the regions."""


Pooling = Literal["cls", "mean", "gpo", "native"]


class DualEncoder(Encoders):
    embedding_size: PositiveInt = 512
    """Numbers in the vectors that are compared."""
    image_tower: str | None = None
    """A pretrained encoder of photographs, `timm:`, `transformers:` or `open_clip:`; by default images are their region
    features."""
    text_tower: str | None = None
    """A pretrained encoder of captions, `transformers:`, `open_clip:`, `static:`; by default a GRU reads words."""
    image_pooling: Pooling = "mean"
    """`mean`, the class token (`cls`), learnt pooling (`gpo`), or what the tower was pretrained with (`native`)."""
    text_pooling: Pooling = "mean"
    """Likewise; `native` of the GRU is its last state."""
    project: bool = True
    """A linear layer into the common space; `false` compares pooled vectors as they are."""


Model = SerializeAsAny[ModelSection]
SECTIONS: dict[str, type[ModelSection]] = {
    section.__name__.lower(): section for section in (VSEpp, VSRN, SCAN, PFAN, BFAN, SGR, SAF, NAAF, IMRAM, MaxSim)
} | {"vse_infinity": VSEInfinity, "dual_encoder": DualEncoder}
