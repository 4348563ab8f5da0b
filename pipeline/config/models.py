"""The [model] section: one frozen model of options for each similarity model, without importing any of them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from aoq.pipeline.config.section import Section

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


class ModelSection(Section):
    makes_embeddings: ClassVar[bool] = True
    """Whether a search index can serve the model; if not, it cannot be the teacher of a table."""
    attends: ClassVar[bool] = False
    """Whether words and regions attend to each other: constraints and attention metrics are for such models."""
    embedding_size: PositiveInt = 1024
    word_size: PositiveInt = 300


class VSEpp(ModelSection):
    name: Literal["vsepp"]
    bidirectional: bool = False


class VSRN(ModelSection):
    name: Literal["vsrn"]
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


class Fragments(ModelSection):
    """What SCAN and its descendants share: their encoders."""

    makes_embeddings = False
    attends = True
    bidirectional: bool = True
    normalise_images: bool = True
    normalise_captions: bool = True
    weight_norm: bool = False


class SCAN(Fragments):
    name: Literal["scan"]
    direction: Literal["t2i", "i2t"] = "t2i"
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = "LogSumExp"
    normalisation: Literal["clipped_l2norm", "l2norm", "clipped_l1norm", "l1norm", "clipped", "softmax", "no_norm"] = (
        "clipped_l2norm"
    )
    temperature: PositiveFloat | None = None
    temperature_lse: PositiveFloat = 6.0


class PFAN(SCAN):
    name: Literal["pfan"]  # type: ignore[assignment]
    aggregation: Literal["LogSumExp", "Mean", "Max", "Sum"] = "Mean"
    position_size: PositiveInt = 200
    grid: PositiveInt = 16
    mask_padding: bool = False


class BFAN(Fragments):
    name: Literal["bfan"]
    focal: Literal["equal", "prob"] = "equal"
    temperature: PositiveFloat = 20.0


class SAF(Fragments):
    name: Literal["saf"]
    similarity_size: PositiveInt = 256
    dropout: Fraction = 0.4


class SGR(SAF):
    name: Literal["sgr"]  # type: ignore[assignment]
    steps: PositiveInt = 3


class NAAF(Fragments):
    name: Literal["naaf"]
    temperature: PositiveFloat = 20.0
    alpha: PositiveFloat = 2.0
    alpha_schedule: Literal["fixed", "adaptive"] = "fixed"


class IMRAM(Fragments):
    name: Literal["imram"]
    mode: Literal["text", "image", "full"] = "full"
    steps: PositiveInt = 3
    temperature: PositiveFloat = 9.0


Model = Annotated[VSEpp | VSRN | SCAN | PFAN | BFAN | SGR | SAF | NAAF | IMRAM, Field(discriminator="name")]
