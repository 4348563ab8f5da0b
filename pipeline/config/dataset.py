"""The [dataset] and [evaluation] sections: images, captions, and options for reading them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from aoq.pipeline.config.section import Section, TomlArray


class DemoWorldSection(Section):
    """The generated world (pipeline/data/demo.py)."""

    images: Annotated[int, Field(ge=10)] = 3000
    """Scenes to train on, each with five captions."""
    dev_images: Annotated[int, Field(ge=10)] = 500
    """Scenes of the dev split."""
    seed: int = 0
    """Another seed generates another world."""
    detail: Literal["partial", "full"] = "partial"
    """Detail of captions: full (about 3 % of 12,800 also match another scene), or partial (about 47 %)."""
    feature_noise: Annotated[float, Field(ge=0.0, le=100.0)] = 2.0
    """Standard deviation of the noise on every feature; an object's own features have about 1.9."""
    pictures: bool = False
    """Also draw a picture of every scene, for models whose image tower reads photographs."""


class Source(Section):
    """Photographs and captions from which `aoq prepare` makes a dataset folder; paths start at the data root."""

    path: str
    """A table, a JSON file, a folder, or hf:OWNER/NAME."""
    images: str | None = None
    """The folder that image paths are relative to; by default the source's."""
    image_column: str | None = None
    """The column of images or their paths; by default recognised by its name."""
    caption_columns: TomlArray[str] = ()
    """The columns of captions; by default recognised by their names."""
    id_column: str | None = None
    """The column of ids; by default paths, or row numbers."""
    split_column: str | None = None
    """The column that says train, dev or test."""
    split_sizes: dict[str, PositiveInt] = Field(default_factory=dict)
    """Draw splits of this many images, as {dev = 500, test = 500}; train is the rest."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed that draws the splits."""
    restval: Literal["train", "drop"] = "train"
    """Add Karpathy's `restval` to train, or leave it out."""
    extractor: str = "efficientnet-lite0"
    """Name of the extractor that makes an image's features, as `aoq prepare --extractor` takes it."""
    tokens: Literal["patches", "pooled"] = "patches"
    """`patches`: all regions of an image. `pooled`: one vector."""
    skip_broken: bool = False
    """Leave out images that cannot be read, with their captions; otherwise they are an error."""
    pack: bool = False
    """Keep the photographs in the folder, for image towers, if the source has no file per photograph."""


WORLDS = ("folder", "source", "demo")
"""Options of [dataset] of which exactly one is set."""
TRAINING_DATA = (*WORLDS, "train", "train_images", "noise")
"""Options of [dataset] that choose the training pairs; a table and its student share them."""


class Noise(Section):
    """Wrong pairs in the training split; the evaluation splits stay unchanged."""

    level: Literal["caption", "image"] = "caption"
    """`caption`: captions are drawn, and their images permuted (NCR, BiCro). `image`: images are drawn, each with all
    its captions (DECL, L2RM), which is harder. Results of the two are not comparable."""
    ratio: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Fraction of captions or images that is permuted; a few of them stay in place."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Another seed draws other pairs."""
    file: str | None = None
    """An .npy below the data root instead of a draw by `level`, `ratio` and `seed`: per caption the row of its image,
    as in NCR's noise files; or per image the row of the one that gets its captions, as in DECL's."""

    def problems(self) -> Iterator[str]:
        if self.ratio is None and self.file is None:
            yield "give `ratio`, the fraction of wrong pairs, or `file`, a noise file below the data root"

    @property
    def moves_pairs(self) -> bool:
        return self.file is not None or bool(self.ratio)


class DatasetSection(Section):
    """A precomp folder below the data root, photographs to prepare, or the demo world."""

    folder: str | None = None
    """A dataset folder, relative to the data root."""
    source: Source | None = None
    demo: DemoWorldSection | None = None
    train: str = "train"
    """The split to train and mine on."""
    dev: str = "dev"
    """The split that picks the best epoch."""
    train_images: PositiveInt | None = None
    """Train on the first images of the training split, up to this number, with their captions; by default on all."""
    noise: Noise | None = None
    max_regions: PositiveInt | None = None
    """Keep at most this many regions of each image, the first, which detectors score highest. A grid is never cut."""
    vocabulary: str | None = None
    """SCAN's json or VSRN's pickle, relative to the data root; by default the words of `train` and `dev`."""
    tokeniser: str | None = None
    """LIBRARY:NAME_OR_PATH of a text tower, whose tokeniser encodes captions, special tokens included."""
    min_count: PositiveInt = 4
    """Words that occur fewer times in the captions of `train` and `dev` are unknown."""

    def problems(self) -> Iterator[str]:
        words = self.set_among(("tokeniser", "vocabulary")) + ["min_count"] * ("min_count" in self.model_fields_set)
        if len(words) > 1:
            yield f"`{words[0]}` has its own words; take out {words[1:]}"
        if self.demo is not None and (self.train_images or 0) > self.demo.images:
            yield f"`train_images` is {self.train_images}, but [dataset.demo] has {self.demo.images} images"
        if len(self.set_among(WORLDS)) != 1:
            yield "set one of `folder`, below the data root, [dataset.source] and [dataset.demo]"


class EvaluationSection(Section):
    """The student's evaluation: a split and its folds."""

    split: str = "dev"
    """The split to evaluate on."""
    folds: PositiveInt = 1
    """Consecutive folds of the images, averaged: 5 gives COCO's 1K protocol on `testall`."""
    hubness: PositiveFloat | None = None
    """Temperature of a correction for hubs, by all queries of the split; its recalls are shown as well."""
