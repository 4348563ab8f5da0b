"""The `loss` option of a round of training."""

from __future__ import annotations

from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from pydantic import NonNegativeFloat, PositiveFloat, SerializeAsAny, create_model, model_validator

from aoq.pipeline.config.section import MarginRange, NamedSection, check_registered

if TYPE_CHECKING:
    from aoq.pipeline.losses import LossKind

MARGIN = 0.2
MARGINS = {"margin": MARGIN, "margin_online": MARGIN, "margin_offline": 0.0}
"""Defaults of a registered loss's margins."""


class LossSection(NamedSection):
    """Options of a loss: written out here, or the keywords of any other one in `aoq.pipeline.losses.LOSSES`."""

    has_offline_terms: ClassVar[bool] = True
    """True if it can take offline negatives."""
    stands_alone: ClassVar[bool] = False
    """True if it is a loss without offline negatives too: in a first round, and as its own control."""
    takes_pace: ClassVar[bool] = True
    """True if `start_up` sets the hardness of its online negatives."""
    learning: ClassVar[frozenset[str]] = frozenset()
    """Options for learning its numbers; its function does not take them."""
    mask_positives: bool = True
    """Other captions of an anchor's image are no negatives; `false` is the official code's way."""

    @property
    def draws_offline(self) -> bool:
        """Return whether it takes offline negatives if there is a table."""
        return self.has_offline_terms

    @property
    def numbers(self) -> dict[str, Any]:
        """Keywords of the loss's function at the start of a training."""
        return self.model_dump(exclude={"name", "mask_positives", "companions", "offline_columns", *self.learning})

    @property
    def needs_table(self) -> bool:
        return self.draws_offline and (self.makes_triples or not self.stands_alone)

    @property
    def online_margin(self) -> float:
        """Margin of online negatives, or its default if the loss has none."""
        return float(getattr(self, "margin", getattr(self, "margin_online", MARGIN)))

    @property
    def softens(self) -> str:
        """The part that softens for an offline negative that matches with probability p; empty if none does."""
        return "offline margins are m2 (1 - p)" if getattr(self, "margin_offline", 0.0) else ""

    @property
    def makes_triples(self) -> bool:
        """Return whether companions are anchors."""
        return getattr(self, "companions", None) is not None

    @classmethod
    def kind(cls, name: str) -> type[LossSection]:
        if name in SECTIONS:
            return SECTIONS[name]
        from aoq.pipeline.losses import LOSSES  # late: planning losses written out here needs no torch

        check_registered("loss", name, LOSSES)
        return _derive(name, LOSSES[name])


@cache
def _derive(name: str, loss: LossKind) -> type[LossSection]:
    """Derive a section from the function's keywords; margins have their usual ranges and defaults."""
    types, options = get_type_hints(loss.function), dict[str, Any]()
    for option, parameter in signature(loss.function).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            is_margin = option in MARGINS
            options[option] = (MarginRange, MARGINS[option]) if is_margin else (types.get(option, Any), ...)
        elif parameter.kind is parameter.KEYWORD_ONLY:
            options[option] = types.get(option, Any), parameter.default
    base = LossSection if loss.offline == "none" else WithCompanions
    section = create_model(f"LossSection_{name}", __base__=base, **options)
    section.has_offline_terms = loss.offline != "none"
    return section


class OnlineLoss(LossSection):
    has_offline_terms = False
    margin: MarginRange = MARGIN
    """Margin by which a positive should score above a negative."""


class SumLoss(OnlineLoss):
    """The loss on all in-batch negatives, which has no hardness."""

    takes_pace = False


class WithCompanions(LossSection):
    companions: Literal["anchors"] | None = None
    """Batches of `batch_size` true pairs, a third drawn, the others their negatives and companions; all are anchors
    (pipeline/losses/companions.py). By default `batch_size` pairs are drawn, and companions only make derived pairs."""

    @model_validator(mode="after")
    def _triples_may_meet(self) -> WithCompanions:
        if self.companions is not None and not self.mask_positives:
            raise ValueError(
                'companions = "anchors" needs mask_positives: several triples of a batch often hold the same pair'
            )
        return self


class TwoMargins(LossSection):
    margin_online: MarginRange = MARGIN
    """The margin to in-batch negatives, γ₁ of AOQ."""
    margin_offline: MarginRange = 0.0
    """The margin to offline negatives, γ₂ of AOQ."""


class OfflineLoss(TwoMargins, WithCompanions):
    """A loss on offline negatives without other numbers."""


class OnlyOfflineLoss(OfflineLoss):
    """The loss on offline negatives alone, without in-batch ones."""

    takes_pace = False


class AdaptiveLoss(OfflineLoss):
    alpha: PositiveFloat = 0.3
    """Difference in similarity over which an online negative's weight falls by 1, AOQ eq. (5)."""
    beta: PositiveFloat = 1.5
    """The weight of an online negative as hard as the offline one."""


class LogitLoss(WithCompanions):
    """A loss on logits, similarities over a temperature: all negatives count, harder ones more."""

    stands_alone = True
    takes_pace = False
    learning = frozenset({"learn_temperature"})
    temperature: PositiveFloat | Literal["pair"] = 0.07
    """Similarities are divided by it; "pair" takes that of the pretrained pair (and SigLIP's bias)."""
    learn_temperature: bool = True
    """Learn the temperature with the model, starting at this one; otherwise it stays fixed."""
    offline_columns: bool = True
    """Add each anchor's offline negatives as columns; without them a table only shapes the batches."""

    @model_validator(mode="after")
    def _triples_are_of_offline_negatives(self) -> LogitLoss:
        if self.makes_triples and not self.offline_columns:
            raise ValueError('companions = "anchors" is about offline negatives; leave offline_columns out')
        return self

    @property
    def draws_offline(self) -> bool:
        return self.offline_columns

    @property
    def softens(self) -> str:
        return "offline negatives weigh 1 - p"

    @property
    def learnt(self) -> dict[str, float]:
        """Learnt numbers: their start and their bound."""
        return self.model_dump(include={"temperature", "bias", "max_scale"})


class InfoNCELoss(LogitLoss):
    learning = frozenset({"learn_temperature", "max_scale"})
    max_scale: PositiveFloat = 100.0
    """CLIP's bound: 1 / temperature is learnt up to this."""
    hardness_weight: NonNegativeFloat = 0.0
    """LLaVE's alpha: a negative of similarity s has weight e^(alpha s). The paper's is 9; 0 gives equal weights."""

    @model_validator(mode="after")
    def _begins_within_its_bound(self) -> InfoNCELoss:
        if self.temperature != "pair" and self.learn_temperature and self.temperature * self.max_scale < 1:
            raise ValueError(
                f"temperature = {self.temperature} scales by more than max_scale = {self.max_scale}; raise one of "
                "them, or set learn_temperature = false"
            )
        return self


class AdaptiveInfoNCELoss(InfoNCELoss):
    stands_alone = False
    offline_columns: Literal[True] = True
    """Always on: the weights compare with offline negatives."""
    alpha: PositiveFloat = 0.3
    """Difference in similarity over which an in-batch negative's weight falls by 1."""
    beta: PositiveFloat = 1.5
    """The weight of an in-batch negative as hard as the offline one."""


class SigmoidLoss(LogitLoss):
    temperature: PositiveFloat | Literal["pair"] = 0.1
    """Learnt together with the bias."""
    bias: float = -10.0
    """Added to all logits; learnt with the temperature."""


Loss = SerializeAsAny[LossSection]
SECTIONS: dict[str, type[LossSection]] = {
    "sum": SumLoss,
    "online": OnlineLoss,
    "offtri": OfflineLoss,
    "adapofftri": AdaptiveLoss,
    "offquin": OfflineLoss,
    "adapoffquin": AdaptiveLoss,
    "onlyoffline": OnlyOfflineLoss,
    "onlinequin": TwoMargins,
    "adapposquin": AdaptiveLoss,
    "squaredoffquin": OfflineLoss,
    "infonce": InfoNCELoss,
    "adapinfonce": AdaptiveInfoNCELoss,
    "sigmoid": SigmoidLoss,
}
WarmUp = Literal["sum", "online"]


def online_version(loss: LossSection, name: WarmUp = "online") -> LossSection:
    """The loss without offline negatives that replaces `loss`: same online margin, same treatment of positives."""
    return SECTIONS[name].model_validate(
        {"name": name, "margin": loss.online_margin, "mask_positives": loss.mask_positives}
    )


def control_version(loss: LossSection) -> LossSection:
    """The loss that a control trains on instead of `loss`: itself without offline negatives, or the online loss."""
    if not isinstance(loss, LogitLoss):
        return online_version(loss)
    if isinstance(loss, AdaptiveInfoNCELoss):  # without offline negatives nothing adapts
        shared = {option: getattr(loss, option) for option in InfoNCELoss.model_fields}
        return InfoNCELoss.model_validate({**shared, "name": "infonce", "companions": None})
    return loss.model_copy(update={"companions": None, "offline_columns": True})
