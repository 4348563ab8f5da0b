"""The [sampling] section: the table's negatives that a batch uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from aoq.pipeline.config.section import Array, Section

BATCHES = ("batch_ranks", "community")
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Sampling(Section):
    """Draws of offline negatives from the table; h_* narrow them to the head of each list."""

    strategy: Literal["uniform", "coupled", "normal", "weighted"] = "uniform"
    """The ranks of the two draws: independent (`uniform`, the paper), the same (`coupled`, the official code),
    around the middle of the list (`normal`), or by the gap to the positive (`weighted`)."""
    resample: bool = True
    """Draw again where the two offline negatives match each other."""
    h_captions: PositiveInt | None = None
    """Draw from the first of each image's list; by default from all."""
    h_images: PositiveInt | None = None
    """Draw from the first of each caption's list; by default from all."""
    gap: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    """Gap below the lowest positive whose negatives `weighted` draws most, as in SimANS."""
    sharpness: PositiveFloat | None = None
    """Sharpness of `weighted`: weight exp(-sharpness (g - gap)^2) at a gap of g."""
    hardness: Literal["auto"] | PositiveFloat | None = None
    """Draw negatives this many times harder than the hardest in-batch negative, which has rank C / B on average (C
    candidates, batches of B): lists are cut at rank C / (B hardness), instead of h_*. "auto" cuts at C / (10 B), as
    `aoq.pipeline.training.drawn_ranks` explains."""
    hardest: PositiveFloat | None = None
    """Upper limit of the same factor: ranks below C / (B hardest) are left out as well."""
    windows: Array[Array[Share]] | None = None
    """Part of the lists that each drawing epoch draws from, [start, stop) in fractions of their length; the last
    one stays."""

    batches: Literal["mined"] | None = None
    """Batches of pairs that are each other's hard negatives by the table (`aoq.pipeline.batches`); by default
    random ones."""
    batch_ranks: Annotated[tuple[int, int], Field(strict=False)] | None = None
    """Ranks [start, stop) of captions, from 0, that link pairs in `batches`; by default all."""
    community: Annotated[int, Field(ge=2)] | None = None
    """Number of pairs close to each other in `batches`; by default 32."""
    guide_margin: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    """Leave out in-batch negatives that the teacher scores above the anchor's own pair less this margin, GISTEmbed
    (`aoq.pipeline.losses.guide`)."""

    @model_validator(mode="after")
    def _fits(self) -> Sampling:
        if {self.gap is not None, self.sharpness is not None} != {self.strategy == "weighted"}:
            raise ValueError('`gap` and `sharpness` belong to strategy = "weighted", which needs both')
        if self.batches is None and (idle := [name for name in BATCHES if getattr(self, name) is not None]):
            raise ValueError(f'{idle} belong to batches = "mined"; set it, or leave them out')
        heads = [name for name in ("h_captions", "h_images", "windows") if getattr(self, name) is not None]
        if self.hardness is not None and heads:
            raise ValueError(f"`hardness` decides where lists are cut; take out {heads}")
        if self.hardest is not None:
            if self.hardness is None or self.hardness == "auto":
                raise ValueError("`hardest` needs a `hardness` that is a number; give both, or `hardness` alone")
            if self.hardest <= self.hardness:
                raise ValueError(f"hardest = {self.hardest} leaves nothing of hardness = {self.hardness}; raise it")
        if self.windows is not None:
            check_windows(self.windows)
        return self


def check_windows(windows: Sequence[Sequence[float]]) -> None:
    """Refuse windows that leave nothing to draw from."""
    for window in windows:
        if len(window) != 2 or not 0 <= window[0] < window[1] <= 1:
            raise ValueError(f"a window is [start, stop] with start < stop, from 0.0 to 1.0; got {list(window)}")
    if not windows:
        raise ValueError("`windows` is empty; give one, or leave it out")
