"""The `loss` of a round of training."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, model_validator

from aoq.pipeline.config.section import Margin, Section


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

    @model_validator(mode="after")
    def _triples_may_meet(self) -> _CompanionLoss:
        if self.companions is not None and not self.mask_positives:
            raise ValueError(
                'companions = "anchors" needs mask_positives: several triples of a batch often hold the same pair'
            )
        return self


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
