"""Choose how widely an index is searched: the least breadth whose recall on sampled anchors is surely high enough."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float

from aoq.pipeline.search.indexes.recipe import Recipe

logger = logging.getLogger(__name__)

DEVIATIONS = 3 * math.sqrt(3)
"""Standard errors by which the recall of the sample must exceed the wanted one. Another sample, half as large, decides
later: the difference of both has sqrt(3) times the standard error, and three of these are hardly ever exceeded."""
STEP = 1.125
"""The breadth that is chosen is at most so many times the least that is enough."""

Measure = Callable[[int], "Float[np.ndarray, ' anchors']"]
"""Fractions found of the sampled anchors' lists, at a breadth."""


def choose_breadth(recipe: Recipe, wanted: float, count: int, measure: Measure, beyond: int = 0) -> Mapping[int, float]:
    """Recall by breadth of all that were tried; the chosen one is the last, and wider than `beyond`.

    Breadths are doubled until one is enough, and halved back between it and the one before. `count` is the number of
    anchors that the sample is drawn from.

    Raises ValueError if the widest is not enough.
    """
    tried: dict[int, float] = {}

    def is_enough(breadth: int) -> bool:
        found = measure(breadth)
        tried[breadth] = float(found.mean())
        logger.info("%s=%d finds %.2f%% on %d anchors", recipe.breadth, breadth, 100 * tried[breadth], len(found))
        return tried[breadth] - DEVIATIONS * standard_error(found, count) >= wanted

    narrow, wide = beyond, min(max(beyond + 1, math.ceil(STEP * beyond)), recipe.widest)
    while not is_enough(wide):
        if wide == recipe.widest:
            raise ValueError(
                f"{recipe.factory} finds {tried[wide]:.1%} at its widest ({recipe.at(wide)}), and {wanted:.1%} are "
                "wanted beyond the sample's errors; lower the recall floor, or search exactly."
            )
        narrow, wide = wide, min(2 * wide, recipe.widest)
    while wide > max(narrow + 1, STEP * narrow):
        between = (narrow + wide) // 2
        if is_enough(between):
            wide = between
        else:
            narrow = between
    return {**{breadth: recall for breadth, recall in tried.items() if breadth != wide}, wide: tried[wide]}


def standard_error(found: Float[np.ndarray, " anchors"], count: int) -> float:
    """Standard error of the mean of a sample without replacement from `count`."""
    if len(found) >= count:
        return 0.0
    spread = float(found.std(ddof=1)) if len(found) > 1 else 1.0
    return spread / math.sqrt(len(found)) * math.sqrt((count - len(found)) / (count - 1))
