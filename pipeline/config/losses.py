"""The `loss` of a round of training."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat, SerializeAsAny, model_validator

from aoq.pipeline.config.section import Margin, NamedSection, derive_section, keyword_options, registered

if TYPE_CHECKING:
    from aoq.pipeline.losses import LossKind

MARGIN = 0.2
MARGINS = {"margin": (Margin, MARGIN), "margin_online": (Margin, MARGIN), "margin_offline": (Margin, 0.0)}
"""The ranges and defaults of a registered loss's margins."""


class LossSection(NamedSection):
    """The numbers of a loss: written out here, or for any other of `aoq.pipeline.losses.LOSSES` its keywords."""

    draws_offline: ClassVar[bool] = True
    """Whether it needs offline negatives, and so a table."""
    mask_positives: bool = True

    @property
    def online_margin(self) -> float:
        """The margin of online negatives, or what it is by default where the loss has none."""
        return float(getattr(self, "margin", getattr(self, "margin_online", MARGIN)))

    @property
    def makes_triples(self) -> bool:
        """Whether companions are anchors."""
        return getattr(self, "companions", None) is not None

    @classmethod
    def kind(cls, name: str) -> type[LossSection]:
        if name in SECTIONS:
            return SECTIONS[name]
        from aoq.pipeline.losses import LOSSES  # not above: planning what is written out here needs no torch

        return _section_of(name, registered("loss", name, LOSSES, SECTIONS))


@cache
def _section_of(name: str, loss: LossKind) -> type[LossSection]:
    """The function's keywords; margins have their usual ranges and defaults."""
    options = {
        option: MARGINS[option] if option in MARGINS and value[1] is ... else value
        for option, value in keyword_options(loss.function).items()
    }
    base = LossSection if loss.offline == "none" else WithCompanions
    return derive_section(name, base, options, draws_offline=loss.offline != "none")


class OnlineLoss(LossSection):
    draws_offline = False
    margin: Margin = MARGIN


class WithCompanions(LossSection):
    companions: Literal["anchors"] | None = None
    """Batches of `batch_size` true pairs, a third drawn, the others their negatives and companions; all are anchors
    (pipeline/losses/companions.py). By default companions only make the derived pairs, beside `batch_size` drawn."""

    @model_validator(mode="after")
    def _triples_may_meet(self) -> WithCompanions:
        if self.companions is not None and not self.mask_positives:
            raise ValueError(
                'companions = "anchors" needs mask_positives: several triples of a batch often hold the same pair'
            )
        return self


class TwoMargins(LossSection):
    margin_online: Margin = MARGIN
    margin_offline: Margin = 0.0


class OfflineLoss(TwoMargins, WithCompanions):
    """A loss on offline negatives without further numbers."""


class AdaptiveLoss(OfflineLoss):
    alpha: PositiveFloat = 0.3
    beta: PositiveFloat = 1.5


Loss = SerializeAsAny[LossSection]
SECTIONS: dict[str, type[LossSection]] = {
    "sum": OnlineLoss,
    "online": OnlineLoss,
    "offtri": OfflineLoss,
    "offquin": OfflineLoss,
    "adapoffquin": AdaptiveLoss,
    "onlyoffline": OfflineLoss,
    "onlinequin": TwoMargins,
    "adapposquin": AdaptiveLoss,
    "squaredoffquin": OfflineLoss,
}
WarmUp = Literal["sum", "online"]


def online_version(loss: LossSection, name: WarmUp = "online") -> OnlineLoss:
    """The loss without offline negatives that stands in for `loss`: its online margin, its treatment of positives."""
    return OnlineLoss(name=name, margin=loss.online_margin, mask_positives=loss.mask_positives)
