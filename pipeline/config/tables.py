"""Recipes of a negative table: [mining], [rerank], [fusion], [refresh]; and [ensemble], with members as in a fusion."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from aoq.pipeline.config.dataset import Evaluation
from aoq.pipeline.config.section import Array, Runs, Section

EXACT = ("auto", "onepass", "faiss-flat", "streamed")
"""Built-in exact searches, listed here because the registry loads torch. "streamed" is an old name of onepass."""
INDEXED, FACTORY = ("ivf", "hnsw"), "faiss:"
"""Built-in approximate searches."""


def _is_approximate(search: str) -> bool:
    """Return whether a search is approximate; the registry refuses an unknown name."""
    if search in EXACT:
        return False
    if search in INDEXED or (search.startswith(FACTORY) and search != FACTORY):
        return True
    from aoq.pipeline.search.backends import choose_backend

    return not choose_backend(search).is_exact


def _known(search: str) -> str:
    _is_approximate(search)
    return search


class Lengths(Section):
    """Length of the table's lists."""

    h_captions: PositiveInt = 300
    """Captions kept for each image."""
    h_images: PositiveInt = 60
    """Images kept for each caption."""


class Mining(Lengths):
    """Length of the table's lists per image (captions) and per caption (images), and the search."""

    search: Annotated[str, AfterValidator(_known)] = "auto"
    """A backend (`aoq.pipeline.search.backends`); all exact ones find the same lists."""
    recall_floor: Annotated[float, Field(gt=0.0, le=1.0)] = 0.95
    """Fraction of the true lists that an approximate search must find, on sampled anchors."""

    @property
    def is_approximate(self) -> bool:
        return _is_approximate(self.search)


class Members(Section):
    """Other experiments, and how much each counts."""

    members: Annotated[Array[str], Field(min_length=2)]
    """Experiments, each with an optional override after `@`: "f30k_vsrn", "f30k_vsrn@seed=1"."""
    weights: Array[PositiveFloat] | None = None
    """Weight of each member; by default all are equal."""

    @model_validator(mode="after")
    def _weights_fit(self) -> Members:
        if self.weights is not None and len(self.weights) != len(self.members):
            raise ValueError(f"{len(self.weights)} weights for {len(self.members)} members; give one each, or none")
        if len(set(self.members)) < len(self.members):
            raise ValueError(f"a member appears twice in {list(self.members)}; give it a larger weight instead")
        return self


class Ensemble(Runs):
    """An experiment without training: the weighted mean of the similarities of several second rounds."""

    ensemble: Members
    evaluation: Evaluation = Evaluation()


class Rerank(Lengths):
    """The negatives of a table, reordered by another model's scores; the model may compare fragments."""

    shortlist: str
    """Experiment whose table gives the candidates, with an optional override after `@` as in an ensemble."""
    teacher: str
    """Experiment whose second round (or imported `weights`) scores them, with an optional override too."""
    h_captions: PositiveInt = 100
    h_images: PositiveInt = 20
    depth_captions: PositiveInt | None = None
    """Candidates of each shortlist to score; by default all."""
    depth_images: PositiveInt | None = None
    """Likewise, of images."""
    checked_anchors: Annotated[int, Field(ge=1, le=512)] = 32
    """Anchors of each direction that the teacher searches in full, to estimate the shortlist's recall."""

    @model_validator(mode="after")
    def _deep_enough(self) -> Rerank:
        depths = ("captions", self.h_captions, self.depth_captions), ("images", self.h_images, self.depth_images)
        for side, h, depth in depths:
            if depth is not None and depth < h:
                raise ValueError(f"depth_{side} = {depth} gives no list of h_{side} = {h}; rescore at least as many")
        return self


class Fusion(Members, Lengths):
    """The lists of several tables as one: fused by ranks, or by scores on a common scale."""

    members: Annotated[Array[str], Field(min_length=2, max_length=8)]
    """Experiments with a table, each with an override after `@` if need be."""
    method: Literal["rank", "score"]
    """`rank`: reciprocal-rank fusion. `score`: the mean of scores as fractions of the positive pairs that score no
    more."""


class Refresh(Lengths):
    """Refresh of the table: a student with embeddings searches the whole training set, one with fragments reorders."""

    rounds: NonNegativeInt = 1
    """Number of times that the student searches and another one is trained from scratch on the result."""
    drifted_below: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Search an anchor again only if less than this fraction of its list's top half stays there under the student. The
    others keep their lists, with the student's scores. By default all are searched."""


class Reranking(Runs):
    """An experiment without training: a negative table, made from another experiment's."""

    rerank: Rerank


class Fusing(Runs):
    """An experiment without training: a negative table, made from several experiments'."""

    fusion: Fusion
