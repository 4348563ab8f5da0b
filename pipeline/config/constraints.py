"""The [second_round.constraints] section: what a round demands of its model's attention besides ranking pairs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, model_validator

from aoq.pipeline.config.section import Section


class Constraint(Section):
    """The paper reports the best of weights 0.1 and 1 with margins 0, 0.1 and 0.2, not which, so none is a default."""

    weight: PositiveFloat
    margin: Annotated[float, Field(ge=0.0, le=2.0)]


class Constraints(Section):
    """CCR and CCS (`aoq.pipeline.losses.contrastive_content`), in all epochs of the round, warm-up or not."""

    ccr: Constraint | None = None
    """What a fragment attends to is closer to it than the rest."""
    ccs: Constraint | None = None
    """What a fragment attends to is closer to it than to another fragment of its item."""

    @model_validator(mode="after")
    def _one_at_least(self) -> Constraints:
        if self.ccr is None and self.ccs is None:
            raise ValueError(
                "no constraint is set; give `ccr`, `ccs` or both, such as ccr = {weight = 0.1, margin = 0.1}"
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are set."""
        return tuple(name for name in ("ccr", "ccs") if getattr(self, name) is not None)
