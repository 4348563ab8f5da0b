"""Detect the collapse plateau of hardest-negative training, on which every pair is equally similar."""

from __future__ import annotations

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)

NEAR = 0.02
GAP = 0.02
PATIENCE = 300
"""Steps on the plateau before the warning: a start is often flat for a while."""


def on_plateau(loss: float, plateau: float, *, gap: float) -> bool:
    """Return whether the loss is within 2 % of that of equal similarities, and positives do not stand out.

    The loss alone does not tell: hardest negatives as similar as the positives cost the same while a model learns.
    """
    return abs(loss - plateau) <= NEAR * plateau and gap <= GAP


@dataclass
class CollapseDetector:
    """Warns once when a training stays on the plateau."""

    steps: int = 0
    """Steps on the plateau so far."""
    warned: bool = False

    def observe(
        self, loss_name: str, loss: float, plateau: float, *, gap: float, steps: int, can_pace: bool = True
    ) -> bool:
        """Observe the means of the last `steps` steps: loss, plateau, positive gap; return True while collapsed.

        `can_pace` says whether a start-up would help.
        """
        if not on_plateau(loss, plateau, gap=gap):
            self.steps, self.warned = 0, False
            return False
        self.steps += steps
        if self.steps >= PATIENCE and not self.warned:
            self.warned = True
            logger.warning(
                "the %s loss has sat at %.1f for %d steps: the plateau of a model that finds all pairs equally similar "
                "(%.1f). Try %sa lower learning rate.",
                loss_name,
                loss,
                self.steps,
                plateau,
                '`start_up = "auto"`: online negatives as hard as the model can bear; or ' if can_pace else "",
            )
        return self.steps >= PATIENCE
