"""The `loss` section of a training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

from pydantic import NonNegativeFloat, PositiveFloat, SerializeAsAny, create_model

from aoq.pipeline.config.section import MarginRange, NamedSection, check_registered

if TYPE_CHECKING:
    from aoq.pipeline.losses import LossKind

Offline = Literal["none", "anchors", "quintuplet", "triples"]
"""Draws of a step: nothing, the anchors' negatives, their companions as well, or triples of true pairs."""
MARGIN = 0.2
MARGINS = {"margin": MARGIN, "margin_online": MARGIN, "margin_offline": 0.0}
"""Defaults of a registered loss's margins."""


class LossSection(NamedSection):
    """Options of a loss: written out here, or derived from its keywords in `aoq.pipeline.losses.LOSSES`."""

    has_offline_terms: ClassVar[bool] = True
    """True if the loss can take offline negatives."""
    learning: ClassVar[frozenset[str]] = frozenset()
    """Options for learning the loss's numbers; its function does not take them."""
    mask_positives: bool = True
    """Other captions of an anchor's image are not negatives; the official code has `false`."""

    @property
    def draws_offline(self) -> bool:
        """Return whether the loss takes offline negatives, given a table."""
        return bool(getattr(self, "offline_columns", self.has_offline_terms))

    @property
    def takes_pace(self) -> bool:
        """Return whether `start_up` sets the hardness of online negatives, as for hinges on the hardest ones."""
        return not isinstance(self, LogitLoss) and self.name not in ("sum", "onlyoffline")

    @property
    def numbers(self) -> dict[str, Any]:
        """Keywords of the loss's function when a training starts."""
        return self.model_dump(exclude={"name", "mask_positives", "companions", "offline_columns", *self.learning})

    @property
    def needs_table(self) -> bool:
        """Return whether the loss needs offline negatives, so that it cannot train a first round."""
        stands_alone = isinstance(self, LogitLoss) and not isinstance(self, AdaptiveInfoNCELoss)
        return self.draws_offline and (self.makes_triples or not stands_alone)

    @property
    def draws(self) -> Offline:
        from aoq.pipeline.losses import LOSSES

        if self.makes_triples:
            return "triples"
        return LOSSES[self.name].offline if self.draws_offline else "none"

    @property
    def online_margin(self) -> float:
        """Margin of online negatives, or its default if the loss has none."""
        return float(getattr(self, "margin", getattr(self, "margin_online", MARGIN)))

    @property
    def softens(self) -> bool:
        """Return whether a probability of a match lowers an offline negative's margin, or its weight."""
        return isinstance(self, LogitLoss) or getattr(self, "margin_offline", 0.0) > 0

    @property
    def makes_triples(self) -> bool:
        return getattr(self, "companions", None) is not None

    def problems(self) -> Iterator[str]:
        if self.makes_triples and not self.mask_positives:
            yield 'companions = "anchors" needs mask_positives: several triples of a batch often hold the same pair'
        if self.makes_triples and not self.draws_offline:
            yield 'companions = "anchors" needs offline negatives; leave offline_columns out'

    @classmethod
    def kind(cls, name: str) -> type[LossSection]:
        if name in SECTIONS:
            return SECTIONS[name]
        from aoq.pipeline.losses import LOSSES  # late: losses written out here need no torch

        check_registered("loss", name, LOSSES)
        return _derive_loss_section(name, LOSSES[name])


@cache
def _derive_loss_section(name: str, loss: LossKind) -> type[LossSection]:
    """Derive a section from the function's keywords; margins have the usual ranges and defaults."""
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


class WithCompanions(LossSection):
    companions: Literal["anchors"] | None = None
    """Batches of `batch_size` true pairs, all anchors: a third are drawn, the others are their negatives and companions
    (pipeline/losses/companions.py). By default `batch_size` pairs are drawn, and companions only make derived pairs."""


class TwoMargins(LossSection):
    margin_online: MarginRange = MARGIN
    """The margin to in-batch negatives, γ₁ of AOQ."""
    margin_offline: MarginRange = 0.0
    """The margin to offline negatives, γ₂ of AOQ."""


class OfflineLoss(TwoMargins, WithCompanions):
    """A loss on offline negatives with margins only."""


class AdaptiveLoss(OfflineLoss):
    alpha: PositiveFloat = 0.3
    """Difference in similarity over which an online negative's weight falls by 1, AOQ eq. (5)."""
    beta: PositiveFloat = 1.5
    """The weight of an online negative as hard as the offline one."""


class LogitLoss(WithCompanions):
    """A loss on logits, similarities over a temperature: all negatives count, harder ones more."""

    learning = frozenset({"learn_temperature"})
    temperature: PositiveFloat | Literal["pair"] = 0.07
    """Divisor of similarities; "pair" takes that of the pretrained pair (and SigLIP's bias)."""
    learn_temperature: bool = True
    """Learn the temperature with the model, starting at `temperature`; otherwise it stays fixed."""
    offline_columns: bool = True
    """Add each anchor's offline negatives as columns; without them a table only shapes the batches."""

    @property
    def learnt(self) -> dict[str, float]:
        """Start and bound of the learnt numbers."""
        return self.model_dump(include={"temperature", "bias", "max_scale"})


class InfoNCELoss(LogitLoss):
    learning = frozenset({"learn_temperature", "max_scale"})
    max_scale: PositiveFloat = 100.0
    """Upper bound on the learnt 1 / temperature, as in CLIP."""
    hardness_weight: NonNegativeFloat = 0.0
    """LLaVE's alpha: a negative of similarity s has weight e^(alpha s). The paper has 9; 0 gives equal weights."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.temperature != "pair" and self.learn_temperature and self.temperature * self.max_scale < 1:
            scales = f"temperature = {self.temperature} scales by more than max_scale = {self.max_scale}"
            yield f"{scales}; raise one of them, or set learn_temperature = false"


class AdaptiveInfoNCELoss(InfoNCELoss):
    offline_columns: Literal[True] = True
    """Always on: the weights compare with offline negatives."""
    alpha: PositiveFloat = 0.3
    """Difference in similarity over which an in-batch negative's weight falls by 1."""
    beta: PositiveFloat = 1.5
    """The weight of an in-batch negative as hard as the offline one."""


class SigmoidLoss(LogitLoss):
    temperature: PositiveFloat | Literal["pair"] = 0.1
    """Divisor of similarities, learnt with the bias."""
    bias: float = -10.0
    """Added to all logits; learnt with the temperature."""


Loss = SerializeAsAny[LossSection]
SECTIONS: dict[str, type[LossSection]] = {
    "sum": OnlineLoss,
    "online": OnlineLoss,
    "offtri": OfflineLoss,
    "adapofftri": AdaptiveLoss,
    "offquin": OfflineLoss,
    "adapoffquin": AdaptiveLoss,
    "onlyoffline": OfflineLoss,
    "onlinequin": TwoMargins,
    "adapposquin": AdaptiveLoss,
    "squaredoffquin": OfflineLoss,
    "infonce": InfoNCELoss,
    "adapinfonce": AdaptiveInfoNCELoss,
    "sigmoid": SigmoidLoss,
}
WarmUp = Literal["sum", "online"]


def online_version(loss: LossSection, name: WarmUp = "online") -> LossSection:
    """Return the loss without offline negatives that replaces `loss`: same online margin, same masking of positives."""
    options = {"name": name, "margin": loss.online_margin, "mask_positives": loss.mask_positives}
    return SECTIONS[name].model_validate(options)


def control_version(loss: LossSection) -> LossSection:
    """Return the control's loss: `loss` itself without offline negatives, or the online loss."""
    if not isinstance(loss, LogitLoss):
        return online_version(loss)
    if isinstance(loss, AdaptiveInfoNCELoss):  # without offline negatives nothing adapts
        shared = {option: getattr(loss, option) for option in InfoNCELoss.model_fields}
        return InfoNCELoss.model_validate({**shared, "name": "infonce", "companions": None})
    return loss.model_copy(update={"companions": None, "offline_columns": True})


def control_change(loss: LossSection) -> dict[str, Any]:
    """Return the options by which a second round trains on the control's loss, without a table."""
    control = control_version(loss)
    alone = {"offline_columns": False} if isinstance(control, LogitLoss) else {}
    return control.model_dump(mode="json", exclude_defaults=True) | alone
