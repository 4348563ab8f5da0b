"""Recipes of tables: [mining], [rerank], [fusion], [refresh]; [ensemble], with members as in a fusion; [sampling]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from aoq.pipeline.config.dataset import EvaluationSection
from aoq.pipeline.config.section import Runs, Section, TomlArray

IS_EXACT = {"auto": True, "onepass": True, "faiss-flat": True, "ivf": False, "hnsw": False}
"""Built-in searches, listed here since their registry loads torch."""
Share = Annotated[float, Field(ge=0.0, le=1.0)]


def _is_exact(search: str) -> bool:
    """Return whether a search finds the true lists; the registry refuses an unknown name."""
    if search in IS_EXACT or (search.startswith("faiss:") and search != "faiss:"):
        return IS_EXACT.get(search, False)
    from aoq.pipeline.search.backends import choose_backend

    return choose_backend(search).is_exact


def _check_search(search: str) -> str:
    _is_exact(search)
    return search


class Lengths(Section):
    """Length of the table's lists."""

    h_captions: PositiveInt = 300
    """Captions kept for each image."""
    h_images: PositiveInt = 60
    """Images kept for each caption."""


class Mining(Lengths):
    """Length of the table's lists per image (captions) and per caption (images), and the search."""

    search: Annotated[str, AfterValidator(_check_search)] = "auto"
    """A backend (`aoq.pipeline.search.backends`); all exact ones find the same lists."""
    recall_floor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """Fraction of the true lists that an approximate search must find, on sampled anchors."""
    hubness: PositiveFloat | None = None
    """Temperature of an inverted softmax that corrects the scores for hubs on both sides, such as 0.05."""

    @property
    def is_exact(self) -> bool:
        return _is_exact(self.search)


class Members(Section):
    """Other experiments and their weights."""

    members: Annotated[TomlArray[str], Field(min_length=2)]
    """Experiments, each with an optional override after `@`: "f30k_vsrn", "f30k_vsrn@seed=1"."""
    weights: TomlArray[PositiveFloat] | None = None
    """Weight of each member; equal by default."""

    def problems(self) -> Iterator[str]:
        if self.weights is not None and len(self.weights) != len(self.members):
            yield f"{len(self.weights)} weights for {len(self.members)} members; give one each, or none"
        if len(set(self.members)) < len(self.members):
            yield f"a member appears twice in {list(self.members)}; give it a larger weight instead"


class Ensemble(Runs):
    """An experiment without training: the weighted mean of the similarities of several second rounds."""

    ensemble: Members
    evaluation: EvaluationSection = EvaluationSection()


class Rerank(Lengths):
    """The negatives of a table, reordered by another model's scores; this model may compare fragments."""

    shortlist: str
    """Experiment whose table gives the candidates, with an optional override after `@`."""
    teacher: str
    """Experiment whose second round (or imported `weights`) scores them, with an optional override after `@`."""
    h_captions: PositiveInt = 100
    h_images: PositiveInt = 20
    checked_anchors: Annotated[int, Field(ge=1, le=512)] = 32
    """Anchors of each direction that the teacher searches in full, to estimate the shortlist's recall."""


class Fusion(Members, Lengths):
    """The lists of several tables, fused by ranks, or by scores on a common scale."""

    members: Annotated[TomlArray[str], Field(min_length=2, max_length=8)]
    """Experiments with a table, each with an optional override after `@`."""
    method: Literal["rank", "score"]
    """`rank`: reciprocal-rank fusion. `score`: mean fraction of the positive pairs that score at most as high."""


class Refresh(Lengths):
    """Refresh of the table: a student with embeddings searches the training set; one with fragments reorders lists."""

    rounds: NonNegativeInt = 1
    """Number of refreshes; after each, another student is trained, from scratch or as `start` says."""


class Reranking(Runs):
    """An experiment without training: a negative table, made from another experiment's."""

    rerank: Rerank


class Fusing(Runs):
    """An experiment without training: a negative table, made from several experiments'."""

    fusion: Fusion


class Sampling(Section):
    """Draws of offline negatives from the table; h_* limit them to the head of each list."""

    strategy: Literal["uniform", "coupled", "normal", "weighted"] = "uniform"
    """The ranks of the two draws: independent (`uniform`, the paper), the same (`coupled`, the official code),
    around the middle of the list (`normal`), or by the gap to the positive (`weighted`)."""
    resample: bool = True
    """Draw again where the two offline negatives match each other, if the loss uses the pairs derived from them."""
    h_captions: PositiveInt | None = None
    """Draw from this many captions at the head of each image's list; by default from all."""
    h_images: PositiveInt | None = None
    """Draw from this many images at the head of each caption's list; by default from all."""
    gap: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    """Gap below the lowest positive at which `weighted` draws most, as in SimANS."""
    sharpness: PositiveFloat | None = None
    """Sharpness of `weighted`: weight exp(-sharpness (g - gap)^2) at a gap of g."""
    hardness: Literal["auto"] | PositiveFloat | None = None
    """Draw negatives this many times harder than the hardest in-batch negative, which has rank C / B on average (C
    candidates, batches of B): lists are cut at rank C / (B hardness), instead of h_*. "auto" cuts at C / (10 B), as
    `aoq.pipeline.training.drawable` explains."""
    hardest: PositiveFloat | None = None
    """Upper limit of the same factor: ranks below C / (B hardest) are left out too."""
    windows: TomlArray[TomlArray[Share]] | None = None
    """Part of each list to draw from, per drawing epoch, as fractions [start, stop); later epochs keep the last."""

    batches: Literal["mined"] | None = None
    """Batches of mutual hard negatives (`aoq.pipeline.batches`); by default random ones."""
    batch_ranks: Annotated[tuple[int, int], Field(strict=False)] | None = None
    """Ranks [start, stop) of captions, from 0, that link pairs in `batches`; by default all."""
    community: Annotated[int, Field(ge=2)] | None = None
    """Pairs per community of mutual hard negatives in `batches`; by default 32."""
    negatives: PositiveInt | None = None
    """Offline negatives of each kind drawn for each anchor, all of them compared with every anchor of the batch, for
    losses without companions; by default one, compared with its own anchor."""
    columns: Literal["own"] | None = None
    """`own`: an anchor is compared with its own `negatives` only. Otherwise those of other anchors count as in-batch
    negatives, unless they are true pairs or suspected ones that are not drawn."""
    guide_margin: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    """Leave out in-batch pairs that the teacher scores above either item's own pair less this margin (GISTEmbed)."""
    guide_similarity: Annotated[float, Field(ge=-1.0, le=1.0)] | None = None
    """Leave out in-batch pairs whose images, or whose captions, have at least this cosine by the teacher's vectors:
    near duplicates of the positive (RzenEmbed)."""

    @property
    def guides(self) -> list[str]:
        """Options that are set and need the teacher's vectors."""
        return self.set_among(("guide_margin", "guide_similarity"))

    def problems(self) -> Iterator[str]:
        if {self.gap is not None, self.sharpness is not None} != {self.strategy == "weighted"}:
            yield '`gap` and `sharpness` belong to strategy = "weighted", which needs both'
        if self.batches is None and (idle := self.set_among(("batch_ranks", "community"))):
            yield f'{idle} belong to batches = "mined"; set it, or leave them out'
        if self.hardness is not None and (heads := self.set_among(("h_captions", "h_images", "windows"))):
            yield f"`hardness` decides where lists are cut; take out {heads}"
        if self.hardest is not None:
            if self.hardness is None or self.hardness == "auto":
                yield "`hardest` needs a `hardness` that is a number; give both, or `hardness` alone"
            elif self.hardest <= self.hardness:
                yield f"hardest = {self.hardest} must be above hardness = {self.hardness}; raise `hardest`"
        if self.windows is not None:
            check_windows(self.windows)
        if self.columns is not None and self.negatives is None:
            yield "`columns` needs `negatives`; set `negatives`, or leave out `columns`"
        if self.negatives is not None and self.columns is None and self.guides:
            unseen = "does not see negatives drawn for other anchors"
            yield f'`{self.guides[0]}` {unseen}; set columns = "own", or leave it out'
        if self.negatives is not None and self.strategy == "normal":
            yield 'strategy = "normal" draws one negative of each list; leave out `negatives` or `strategy`'


def check_windows(windows: Sequence[Sequence[float]]) -> None:
    """Refuse windows that leave nothing to draw from."""
    for window in windows:
        if len(window) != 2 or not 0 <= window[0] < window[1] <= 1:
            raise ValueError(f"a window is [start, stop] with start < stop, from 0.0 to 1.0; got {list(window)}")
    if not windows:
        raise ValueError("`windows` is empty; give one, or leave it out")
