"""What an experiment computes: one frozen model per TOML section; unknown keys, types and ranges are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from pipeline.co_teaching_section import CoTeaching
from pipeline.constraints_section import Constraints
from pipeline.model_sections import Model, Section
from pipeline.noise_section import Noise
from pipeline.refresh_section import Refresh
from pipeline.screen_section import Screen

CONFIGS = Path(__file__).resolve().parent.parent / "configs"

TABLE_SOURCES = ("teacher", "teacher_weights", "first_round")

Margin = Annotated[float, Field(ge=0.0, le=2.0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


def _list_of(item: Any) -> Any:
    return Annotated[tuple[item, ...], Field(strict=False)]  # TOML's arrays are lists


class DemoWorld(Section):
    """The generated world (pipeline/data/demo.py)."""

    images: Annotated[int, Field(ge=10)] = 3000
    dev_images: Annotated[int, Field(ge=10)] = 500
    seed: int = 0


class Dataset(Section):
    """A precomp folder below the data root, or the demo world."""

    folder: str | None = None
    demo: DemoWorld | None = None
    train: str = "train"
    dev: str = "dev"
    train_images: PositiveInt | None = None
    """Train on the first so many images of the training split, with their captions; by default on all."""
    noise: Noise | None = None
    max_regions: PositiveInt | None = None
    """Keep the first regions of each image only; detectors write them by falling score."""
    vocabulary: str | None = None
    """A SCAN-style json, relative to the data root; by default built from `vocabulary_splits`."""
    vocabulary_splits: _list_of(str) = ("train", "dev")  # type: ignore[valid-type]
    min_count: PositiveInt = 4

    @model_validator(mode="after")
    def _one_source(self) -> Dataset:
        if (self.folder is None) == (self.demo is None):
            raise ValueError("name either `folder` (a precomp folder below the data root) or a [dataset.demo] section")
        return self


class _OnlineLoss(Section):
    margin: Margin = 0.2
    mask_positives: bool = True


class Sum(_OnlineLoss):
    name: Literal["sum"]


class Online(_OnlineLoss):
    name: Literal["online"]


class _OfflineLoss(Section):
    margin_online: Margin = 0.2
    margin_offline: Margin = 0.0
    mask_positives: bool = True


class _CompanionLoss(_OfflineLoss):
    companions: Literal["anchors"] | None = None
    """Batches of `batch_size` true pairs, a third drawn, the others their negatives and companions; all are anchors
    (pipeline/losses/companions.py). By default companions only make the derived pairs, beside `batch_size` drawn."""


class OffTri(_CompanionLoss):
    name: Literal["offtri"]


class OffQuin(_CompanionLoss):
    name: Literal["offquin"]


class AdapOffQuin(_CompanionLoss):
    name: Literal["adapoffquin"]
    alpha: PositiveFloat = 0.3
    beta: PositiveFloat = 1.5


class OnlyOffline(_CompanionLoss):
    name: Literal["onlyoffline"]


class OnlineQuin(_OfflineLoss):
    name: Literal["onlinequin"]


class AdapPosQuin(AdapOffQuin):
    name: Literal["adapposquin"]  # type: ignore[assignment]


class SquaredOffQuin(_CompanionLoss):
    name: Literal["squaredoffquin"]


Loss = Annotated[
    Sum | Online | OffTri | OffQuin | AdapOffQuin | OnlyOffline | OnlineQuin | AdapPosQuin | SquaredOffQuin,
    Field(discriminator="name"),
]
WarmUp = Literal["sum", "online"]


def online_version(loss: Loss, name: WarmUp = "online") -> Sum | Online:
    """The loss without offline negatives that stands in for `loss`: its online margin, its treatment of positives."""
    margin = loss.margin if isinstance(loss, _OnlineLoss) else loss.margin_online
    section = Sum if name == "sum" else Online
    return section.model_validate({"name": name, "margin": margin, "mask_positives": loss.mask_positives})


class Training(Section):
    """One round of training; the schedule counts whole epochs (one visit of every caption)."""

    loss: Loss
    epochs: PositiveInt
    batch_size: Annotated[int, Field(ge=2)] = 128
    learning_rate: PositiveFloat = 2e-4
    decay_epochs: _list_of(PositiveInt) = ()  # type: ignore[valid-type]
    """The learning rate is multiplied by `decay` after each of these epochs."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    gradient_clip: PositiveFloat = 2.0
    warmup: _list_of(WarmUp) = ()  # type: ignore[valid-type]
    """The loss of the first epochs, one name each, in place of `loss`; its margin is the online one."""
    start_up: Literal["protected"] | None = None
    """Before all else epochs on every negative (`sum`), until the batch's hardest cost less than they cost a model
    that finds all pairs alike: until then, training on them would end there."""
    constraints: Constraints | None = None
    """What is demanded of the model's attention besides."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> Training:
        if len(self.warmup) >= self.epochs:
            raise ValueError(f"{len(self.warmup)} warm-up epochs leave none of {self.epochs} for {self.loss.name!r}")
        return self


class SecondRound(Training):
    start: Literal["teacher", "control"] | None = None
    """Fine-tuning, in place of fresh weights: the weights of the first round that the table comes from, or those of
    the student's own control. The control itself always starts afresh."""

    @model_validator(mode="after")
    def _start_is_used(self) -> SecondRound:
        if self.start is not None and self.loss.name in get_args(WarmUp):
            raise ValueError(f"`start` belongs to a loss on offline negatives; with {self.loss.name!r} leave it out")
        return self


def plain_training(section: CoTeaching) -> SecondRound:
    """One network of the two by itself, on all pairs: their schedule, with the online loss in place of co-teaching."""
    return SecondRound(
        loss=Online(name="online", margin=section.margin, mask_positives=section.mask_positives),
        epochs=section.warmup_epochs + section.epochs,
        batch_size=section.batch_size,
        learning_rate=section.learning_rate,
        decay_epochs=tuple(section.warmup_epochs + after for after in section.decay_epochs),
        decay=section.decay,
        gradient_clip=section.gradient_clip,
        warmup=("sum",) * section.warmup_epochs,
    )


class Mining(Section):
    """How many negatives the table keeps per image (captions) and per caption (images), and who searches."""

    h_captions: PositiveInt = 300
    h_images: PositiveInt = 60
    search: Annotated[str, Field(pattern="^(auto|onepass|faiss-flat|faiss:.+)$")] = "auto"
    """`pipeline.mining.backends` describes them; the exact ones all find the same lists."""
    recall_floor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """What share of the true lists a search that is not exact must find, on sampled anchors."""

    @property
    def is_approximate(self) -> bool:
        return self.search.startswith("faiss:")


class Sampling(Section):
    """How the sampler draws offline negatives from the table; h_* narrow it to the head of each list."""

    strategy: Literal["uniform", "coupled", "normal", "weighted"] = "uniform"
    resample: bool = True
    h_captions: PositiveInt | None = None
    h_images: PositiveInt | None = None
    gap: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    """Of `weighted`: negatives that score so much below the lowest positive come up most (SimANS's b)."""
    sharpness: PositiveFloat | None = None
    """Of `weighted`: how much more often, exp(-sharpness (g - gap)^2) at a gap of g (SimANS's a)."""
    harder: PositiveFloat | None = None
    """Draw what is at least so many times harder than the batch's own hardest negative: of C candidates a batch of B
    has that of rank C / B, on average, and the lists are cut at C / (B harder). In place of h_*."""
    hardest: PositiveFloat | None = None
    """And at most so many times: ranks below C / (B hardest) are left out as well."""
    windows: _list_of(_list_of(Share)) | None = None  # type: ignore[valid-type]
    """Of each epoch, from which part of the lists, [start, stop) in shares of their length; the last one stays."""

    @model_validator(mode="after")
    def _weights_fit(self) -> Sampling:
        given = {name for name in ("gap", "sharpness") if getattr(self, name) is not None}
        wanted = {"gap", "sharpness"} if self.strategy == "weighted" else set()
        if given != wanted:
            raise ValueError('`gap` and `sharpness` belong to strategy = "weighted", which needs both')
        return self

    @model_validator(mode="after")
    def _hardness_fits(self) -> Sampling:
        instead = [name for name in ("h_captions", "h_images", "windows") if getattr(self, name) is not None]
        if self.harder is None and self.hardest is not None:
            raise ValueError("`hardest` goes with `harder`; give both, or `harder` alone")
        if self.harder is not None and instead:
            raise ValueError(f"`harder` says where lists are cut; take out {instead}")
        if self.harder is not None and self.hardest is not None and self.hardest <= self.harder:
            raise ValueError(f"hardest = {self.hardest} leaves nothing that is harder = {self.harder}; raise it")
        return self

    @model_validator(mode="after")
    def _windows_fit(self) -> Sampling:
        for window in self.windows or ():
            if len(window) != 2 or window[0] >= window[1]:
                raise ValueError(f"a window is [start, stop] with start < stop, from 0.0 to 1.0; got {list(window)}")
        if self.windows == ():
            raise ValueError("`windows` is empty; give one, or leave it out")
        return self


class Evaluation(Section):
    split: str = "dev"
    folds: PositiveInt = 1
    """Consecutive folds of the images, averaged: 5 gives COCO's 1K protocol on `testall`."""


class Members(Section):
    members: Annotated[tuple[str, ...], Field(strict=False, min_length=2)]
    """Experiments, each with an override after `@` if need be: "f30k_vsrn", "f30k_vsrn@seed=1"."""
    weights: Annotated[tuple[PositiveFloat, ...] | None, Field(strict=False)] = None

    @model_validator(mode="after")
    def _weights_fit(self) -> Members:
        if self.weights is not None and len(self.weights) != len(self.members):
            raise ValueError(f"{len(self.weights)} weights for {len(self.members)} members; give one each, or none")
        if len(set(self.members)) < len(self.members):
            raise ValueError(f"a member stands twice among {list(self.members)}; give it a larger weight instead")
        return self


class Ensemble(Section):
    """An experiment that trains nothing: the weighted mean of the similarities of several second rounds."""

    name: str
    ensemble: Members
    evaluation: Evaluation = Evaluation()


class Rerank(Section):
    """The negatives of a table in the order of another model's scores, which may compare fragments."""

    shortlist: str
    """The experiment whose table gives the candidates; an override after `@` if need be, as in an ensemble."""
    teacher: str
    """The experiment whose second round (or imported `weights`) scores them; likewise."""
    h_captions: PositiveInt = 100
    h_images: PositiveInt = 20
    depth_captions: PositiveInt | None = None
    """So many of each shortlist are scored; by default all."""
    depth_images: PositiveInt | None = None
    checked_anchors: Annotated[int, Field(ge=1, le=512)] = 32
    """Of each direction: searched in full by the teacher, to tell what the shortlist lacks."""

    @model_validator(mode="after")
    def _deep_enough(self) -> Rerank:
        for side in ("captions", "images"):
            h, depth = getattr(self, f"h_{side}"), getattr(self, f"depth_{side}")
            if depth is not None and depth < h:
                raise ValueError(f"depth_{side} = {depth} gives no list of h_{side} = {h}; rescore at least as many")
        return self


class Fusion(Members):
    """The lists of several tables as one: by ranks, or by scores that were made comparable."""

    members: Annotated[tuple[str, ...], Field(strict=False, min_length=2, max_length=8)]
    method: Literal["rank", "score"]
    h_captions: PositiveInt = 300
    h_images: PositiveInt = 60


class Reranking(Section):
    """An experiment that trains nothing: a negative table, made of another experiment's."""

    name: str
    rerank: Rerank


class Fusing(Section):
    """An experiment that trains nothing: a negative table, made of several experiments'."""

    name: str
    fusion: Fusion


class Experiment(Section):
    name: str
    seed: Annotated[int, Field(ge=0)] = 0
    dataset: Dataset
    model: Model
    teacher: str | None = None
    """An experiment whose negative table this one trains on, instead of rounds one of its own."""
    teacher_weights: str | None = None
    """Weights of `aoq import-checkpoint`, relative to the data root, in place of a first round."""
    weights: str | None = None
    """Such weights in place of all training: a model to evaluate, alone or in an ensemble."""
    first_round: Training | None = None
    mining: Mining | None = None
    screen: Screen | None = None
    sampling: Sampling = Sampling()
    second_round: SecondRound | None = None
    refresh: Refresh | None = None
    co_teaching: CoTeaching | None = None
    """Two networks trained on noisy pairs, in place of the rounds: without a table, so without a teacher."""
    evaluation: Evaluation = Evaluation()

    @property
    def student(self) -> SecondRound:
        """The second round of an experiment that has one; of two networks that are co-taught, what is plain of it."""
        if self.co_teaching is not None:
            return plain_training(self.co_teaching)
        if self.second_round is None:
            raise ValueError(f"experiment {self.name!r} trains nothing: it has `weights` in place of [second_round].")
        return self.second_round

    @model_validator(mode="after")
    def _trains_or_not(self) -> Experiment:
        stages = (*TABLE_SOURCES, "mining", "second_round", "refresh")
        training = [key for key in stages if getattr(self, key) is not None]
        if self.weights is not None and training:
            raise ValueError(f"`weights` stand in place of all training; take out {training}")
        if self.weights is None and self.second_round is None and self.co_teaching is None:
            raise ValueError("give [second_round] or [co_teaching], or imported `weights` to evaluate")
        return self

    @model_validator(mode="after")
    def _co_teaches_alone(self) -> Experiment:
        others = (*TABLE_SOURCES, "mining", "screen", "sampling", "second_round", "refresh", "weights")
        if self.co_teaching is not None and (idle := [key for key in others if key in self.model_fields_set]):
            raise ValueError(f"[co_teaching] stands in place of the rounds and needs no table; take out {idle}")
        return self

    @model_validator(mode="after")
    def _one_table(self) -> Experiment:
        if self.weights is not None or self.co_teaching is not None:
            return self
        sources = [key for key in TABLE_SOURCES if getattr(self, key) is not None]
        if len(sources) != 1:
            raise ValueError(
                "give exactly one of [first_round] (train a teacher), `teacher_weights` (import one) and "
                f"`teacher` (use that experiment's table), got {sources or 'none'}"
            )
        if (self.mining is None) != (self.teacher is not None):
            raise ValueError("[mining] belongs to an experiment that makes its own table, and to no other")
        if self.teacher is None and not self.model.makes_embeddings:
            raise ValueError(
                f"[model] {self.model.name} compares fragments, and a search index needs embeddings; name a `teacher`"
            )
        if self.first_round is not None and self.first_round.loss.name not in get_args(WarmUp):
            raise ValueError(f"[first_round.loss] must be one of {list(get_args(WarmUp))}: there is no table yet")
        return self

    @model_validator(mode="after")
    def _something_to_refresh(self) -> Experiment:
        if self.refresh is None:
            return self
        if self.student.loss.name in get_args(WarmUp):
            raise ValueError(f"[refresh] makes tables, and loss {self.student.loss.name!r} uses none; leave it out")
        if self.refresh.drifted_below is not None and not self.model.makes_embeddings:
            raise ValueError(
                f"[refresh] drifted_below spares anchors of a search, and [model] {self.model.name} compares "
                "fragments: it orders lists and searches nothing. Leave it out"
            )
        return self

    @model_validator(mode="after")
    def _attention_to_constrain(self) -> Experiment:
        for name in ("first_round", "second_round"):
            training: Training | None = getattr(self, name)
            if training is not None and training.constraints is not None and not self.model.attends:
                raise ValueError(
                    f"[{name}.constraints] is about attention, and [model] {self.model.name} has none: it compares "
                    "whole images and captions. Leave the section out, or choose a model of fragments, such as scan"
                )
        return self
