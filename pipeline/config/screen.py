"""The [screen] section: negatives to leave out of a table, and suspected false negatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveInt

from aoq.pipeline.config.section import Section

Cosine = Annotated[float, Field(ge=-1.0, le=1.0)]
Probability = Annotated[float, Field(gt=0.0, le=1.0)]
Suspected = Literal["drop", "downweight", "soft_margin", "keep", "positive"]


class ScreenSection(Section):
    """Rules on the listed pairs (image, caption); unset rules are skipped.

    `range_*`, `*_score` and `max_uses` leave negatives out. The other rules flag suspected false negatives, and
    `suspected` decides their use in training: not drawn (`drop`), drawn less the more they are suspected
    (`downweight`), drawn with a smaller offline margin or weight (`soft_margin`), or drawn like any other (`keep`).
    With `positive`, pairs that `positives`, `same_text` or `judgements` flag become positives: the image of an anchor
    is drawn from its caption's own and these, and other suspects are dropped. Files of an experiment are below the data
    root.
    """

    range_min: PositiveInt | None = None
    """Leave out this many negatives at the head of each list; ranks count from 0 in the table."""
    range_max: PositiveInt | None = None
    """Leave out all negatives from this rank on."""
    min_score: float | None = None
    """Leave out negatives with a lower score."""
    max_score: float | None = None
    """Leave out negatives with a higher score."""
    positives: str | None = None
    """A file of pairs that people judged to match: Parquet or CSV with the columns caption_id and image_id (rows of the
    data from 0, not ids), or json, {caption: [image, ...]}."""
    same_text: bool = False
    """Flag captions with the same words as one of the image's own; case, full stops and typography are ignored."""
    near_text: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    """Flag captions that share at least this fraction of their words with one of the image's own (Jaccard)."""
    caption_similarity: Cosine | None = None
    """Flag captions at least this similar to one of the image's own by the teacher's embeddings."""
    image_similarity: Cosine | None = None
    """Flag images at least this similar to the caption's own by the teacher's embeddings."""
    mutual_rank: PositiveInt | None = None
    """Flag pairs in which each item is among the first n of the other's list, n being this number."""
    absolute_margin: NonNegativeFloat | None = None
    """Flag negatives within this margin of the anchor's lowest positive."""
    relative_margin: NonNegativeFloat | None = None
    """The same margin as a fraction of that positive's score: 0.05 is NV-Retriever's 95 %."""
    margin_positive: Literal["mean", "own"] | None = None
    """Which of its captions' scores an image's margins compare with: by default the lowest; `mean`: the mean; `own`: in
    training that of the pair itself, elsewhere the highest."""
    max_uses: PositiveInt | None = None
    """Keep a candidate in at most this many lists, those where it ranks highest after the other rules."""
    doubtful_pair: Probability | None = None
    """Flag negatives of a caption whose own pair is correct with a lower probability than this: in an image's list, the
    caption may match; in the caption's list, any image may."""
    pair_probabilities: str | None = None
    """File for `doubtful_pair`, with columns caption_id and probability: the clean_pairs.parquet of [co_teaching]."""
    judgements: str | None = None
    """File of a judge, such as an MLLM; overrides weaker rules. Columns caption_id, image_id (rows of the data) and
    probability of a match; Parquet, CSV, TSV or JSON lines."""
    judged_match: Probability = 0.5
    """Flag pairs to which the judge gives at least this probability; clear the others that it judges."""
    judged_grades: Annotated[tuple[float, float], Field(strict=False)] | None = None
    """Lowest and highest grade, if the file has grades instead of probabilities; they map linearly to 0 and 1."""
    alike_owners: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Flag this fraction of each list: candidates whose owners the teacher scores most similar to the anchor (SaHa)."""
    match_prior: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """Suspect each negative, without a flag, by its probability of a match given its score and this prior (FNE)."""
    suspected: Suspected = "drop"
    """Use of suspected false negatives in training."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    def problems(self) -> Iterator[str]:
        if not self.rules and self.match_prior is None:
            yield f"no rule is set; set at least one of {[*RULES, 'match_prior']}"
        if len(self.set_among(("doubtful_pair", "pair_probabilities"))) == 1:
            yield "`doubtful_pair` and `pair_probabilities` belong together: give both, or neither"
        if self.margin_positive is not None and not self.set_among(("absolute_margin", "relative_margin")):
            yield "`margin_positive` is for `absolute_margin` and `relative_margin`; set one of these, or leave it out"
        if self.margin_positive == "own" and (self.judgements or self.suspected not in ("drop", "positive")):
            yield '`margin_positive = "own"` limits what is drawn: it takes suspected = "drop" and no `judgements`'
        if self.max_uses and self.suspecting and self.suspected not in ("drop", "positive"):
            draws = f'suspected = "{self.suspected}" draws suspects as well'
            yield f'`max_uses` counts the lists in which a candidate is not suspected, but {draws}; choose "drop"'
        if self.suspected == "positive" and not {*MATCHING} & {*self.rules}:
            yield f'suspected = "positive" takes matches from {list(MATCHING)}; set one, or choose "drop"'
        if self.judgements is None and (idle := sorted({*JUDGEMENT_OPTIONS} & self.model_fields_set)):
            yield f"{idle} are for `judgements`; give these too, or leave them out"
        if self.judged_grades is not None and not self.judged_grades[0] < self.judged_grades[1]:
            yield f"judged_grades = {list(self.judged_grades)} must be the lowest grade and a higher one"
        if self.range_max is not None and self.range_max <= (self.range_min or 0):
            yield f"range_max = {self.range_max} leaves nothing after range_min = {self.range_min}"

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules that are set, in order of application."""
        return tuple(name for name in self.set_among(RULES) if getattr(self, name) is not False)

    @property
    def suspecting(self) -> tuple[str, ...]:
        """Set rules that cast suspicion."""
        return tuple(rule for rule in self.rules if rule not in EXCLUSIONS)

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything that shapes a view of a table, with files by name; the treatment of suspects does not."""
        shaping = {
            *self.rules,
            "pair_probabilities",
            "margin_positive",
            "match_prior",
            *(JUDGEMENT_OPTIONS if self.judgements else ()),
        }
        return self.model_dump(mode="json", include=shaping, exclude_none=True)

    @property
    def files(self) -> dict[str, str]:
        return {file: getattr(self, file) for file in self.set_among(("positives", "pair_probabilities", "judgements"))}

    @property
    def needs_vectors(self) -> bool:
        return bool(self.set_among(VECTOR_RULES))


JUDGEMENT_OPTIONS = ("judged_match", "judged_grades")
"""Options for reading `judgements`."""
OPTIONS = ("pair_probabilities", "margin_positive", *JUDGEMENT_OPTIONS, "match_prior", "suspected")
"""Options that are not rules with a flag."""
RULES = tuple(name for name in ScreenSection.model_fields if name not in OPTIONS)
"""Rules in the order of their bits in the flags, so new ones come last: older views are still read."""
EXCLUSIONS = ("range_min", "range_max", "min_score", "max_score", "max_uses")
"""Rules that leave negatives out; all others cast suspicion."""
CERTAIN = ("positives", "same_text")
"""Rules that no judge overrides: human judgements, and identical text."""
MATCHING = (*CERTAIN, "judgements")
"""Rules that find matches, which `suspected = "positive"` makes positives."""
VECTOR_RULES = ("caption_similarity", "image_similarity", "alike_owners")
