"""The [screen] section: which negatives of a table are left out, and which may be true matches after all."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveInt, model_validator

from aoq.pipeline.config.section import Section

Cosine = Annotated[float, Field(ge=-1.0, le=1.0)]
Suspected = Literal["drop", "downweight", "keep"]


class Screen(Section):
    """Rules on the listed pairs, each an image and a caption; a rule that is not set is not asked.

    `range_*`, `*_score` and `max_uses` leave negatives out. The other rules make them suspected false negatives, and
    `suspected` says what becomes of those while sampling.
    """

    range_min: PositiveInt | None = None
    """So many of each list's first are left out; ranks are those of the table, from 0."""
    range_max: PositiveInt | None = None
    """From this rank on all are left out."""
    min_score: float | None = None
    """What scores less is left out."""
    max_score: float | None = None
    """What scores more is left out."""
    positives: str | None = None
    """A file of pairs known to match, people's judgements: Parquet or CSV with the columns caption_id and image_id
    (rows of the data), or json, {caption: [image, ...]}. In an experiment, below the data root."""
    same_text: bool = False
    """The caption says what one of the image's own captions says, word by word."""
    near_text: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """The caption and one of the image's own have so much of their words in common (Jaccard)."""
    caption_similarity: Cosine | None = None
    """The teacher finds the caption and one of the image's own so similar."""
    image_similarity: Cosine | None = None
    """The teacher finds the image and the caption's own so similar."""
    mutual_rank: PositiveInt | None = None
    """Each is among so many first in the other's list."""
    absolute_margin: NonNegativeFloat | None = None
    """Not so much less similar than the anchor's lowest-scoring positive."""
    relative_margin: NonNegativeFloat | None = None
    """The same, as a share of that positive's score: 0.05 is NV-Retriever's 95 %."""
    max_uses: PositiveInt | None = None
    """Of what the other rules leave, a candidate stays in so many lists only: where it ranks highest."""
    doubtful_pair: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """The pair of the caption with its own image is right with a lower probability, so that it says little against this
    image: in an image's list the caption may be its own, and in the caption's list any image may."""
    pair_probabilities: str | None = None
    """Of `doubtful_pair`: the file clean_pairs.parquet of an experiment with [co_teaching]; columns caption_id and
    probability. In an experiment, below the data root."""
    suspected: Suspected = "drop"

    model_config = ConfigDict(use_attribute_docstrings=True)

    @model_validator(mode="after")
    def _makes_sense(self) -> Screen:
        if not self.rules:
            raise ValueError(f"no rule is set; set at least one of {list(RULES)}")
        if (self.doubtful_pair is None) != (self.pair_probabilities is None):
            raise ValueError("`doubtful_pair` and `pair_probabilities` belong together: give both, or neither")
        if self.range_max is not None and self.range_max <= (self.range_min or 0):
            raise ValueError(f"range_max = {self.range_max} leaves nothing after range_min = {self.range_min}")
        return self

    @property
    def rules(self) -> tuple[str, ...]:
        """Those that are set, in the order in which they are asked."""
        return tuple(name for name in RULES if getattr(self, name) is not None and getattr(self, name) is not False)

    @property
    def needs_vectors(self) -> bool:
        """Whether it asks the teacher for more than the table says."""
        return self.caption_similarity is not None or self.image_similarity is not None


RULES = tuple(name for name in Screen.model_fields if name not in ("pair_probabilities", "suspected"))
"""A later rule comes last: views name the rules of their flags, and those of before are still read."""
EXCLUSIONS = ("range_min", "range_max", "min_score", "max_score", "max_uses")
"""Rules that leave out; all others cast suspicion."""
