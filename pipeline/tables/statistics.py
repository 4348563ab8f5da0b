"""Statistics of a whole table, and the difference between two tables of the same data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int32

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.pairs import ID_COUNT, pair_keys
from aoq.pipeline.tables.table import NegativeTable

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
PERSISTENCE = 0.9
MARGINS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
"""Values of the screen's `relative_margin` that are compared; 0.05 is NV-Retriever's 95 % of the positive."""
USUAL = 0.05
BANDS = (1, 11, 31, 101, 301)
"""First ranks, from 1, of the parts of a list in which they are compared; the last has no end."""
FEWEST, MOST = 0.1, 0.99
"""Fractions of the first ten below which a margin rejects nearly everything, and above which it rejects nothing."""


@dataclass(frozen=True)
class Description:
    """One direction's lists. Quantiles are those of QUANTILES, over anchors; None if there is nothing to count."""

    anchors: int
    h: int
    full: float
    """Fraction of lists without padding."""
    first_score: list[float] | None
    last_score: list[float] | None
    positive_score: list[float] | None
    """Quantiles of the lowest-scoring positive's score."""
    positive_rank: list[float] | None
    """1 + the negatives at least as similar as the lowest-scoring positive; h + 1 means any rank beyond the list."""
    above_positive: float | None
    """Fraction of listed pairs at least as similar as the anchor's lowest-scoring positive."""
    never_listed: float
    """Fraction of candidates that are in no list."""
    most_listed: list[tuple[int, int]]
    """Hubs: the candidates in most lists, with their number of lists."""
    kept_by_margin: dict[str, dict[float, list[float]]]
    """Fraction of the negatives in each of BANDS that a screen keeps, by `relative_margin`, for the "lowest" positive
    and, of images whose captions' scores are known, for their "mean"; without scores empty."""

    @property
    def exceeds_false_negatives(self) -> bool:
        """True if most listed pairs score at least as high as a positive: a sign of a weak teacher or wrong pairs."""
        return self.above_positive is not None and self.above_positive > 0.5


@dataclass(frozen=True)
class Difference:
    """Difference between one direction of two tables, over the anchors; 1 means the same lists."""

    depth: int
    overlap: float
    """Mean fraction of ids that both lists have within `depth`."""
    rank_biased_overlap: float
    """Mean rank-biased overlap (Webber et al., 2010) with p = 0.9, cut at `depth`, divided by that of equal lists."""
    same_order: float
    """Fraction of anchors with the same ids in the same order."""
    most_changed: list[tuple[int, float]]
    """Anchors with the least overlap, and their overlap."""


def describe(
    lists: NegativeLists, candidates: int, hubs: int = 5, mean_positive: Float[np.ndarray, " anchors"] | None = None
) -> Description:
    """Describe the lists of one direction: their hardness relative to the positives, and the hubs.

    `candidates` is the number of rows of the other side, `mean_positive` the mean score of each anchor's positives.
    """
    positives = {"lowest": lists.positive_score, **({} if mean_positive is None else {"mean": mean_positive})}
    ids, scores = lists.negative_ids, lists.scores
    uses = np.bincount(ids[ids >= 0], minlength=candidates)
    order = np.argsort(-uses, kind="stable")[:hubs]
    compared = np.isfinite(lists.positive_score)
    above = scores[compared] >= lists.positive_score[compared, None]
    listed = int((ids[compared] >= 0).sum())
    return Description(
        anchors=len(lists),
        h=lists.h,
        full=float((ids[:, -1] >= 0).mean()),
        first_score=_quantiles(scores[:, 0]),
        last_score=_quantiles(scores[:, -1]),
        positive_score=_quantiles(lists.positive_score),
        positive_rank=_quantiles(1.0 + above.sum(axis=1)),
        above_positive=float(above.sum() / listed) if listed else None,
        never_listed=float((uses == 0).mean()),
        most_listed=[(int(row), int(uses[row])) for row in order],
        kept_by_margin={name: kept for name, each in positives.items() if (kept := kept_by_margin(lists, each))},
    )


def kept_by_margin(lists: NegativeLists, positive_score: Float[np.ndarray, " anchors"]) -> dict[float, list[float]]:
    """Return the fraction of negatives that each of MARGINS keeps in each of BANDS.

    A margin m keeps a negative of score s if s <= p - m |p|, p being the anchor's score in `positive_score`. A band in
    which no list has a negative is left out.
    """
    compared = np.isfinite(positive_score)
    scores, is_listed = lists.scores[compared], lists.negative_ids[compared] >= 0
    positive = positive_score[compared, None]
    below = np.where(is_listed, positive - scores, -np.inf)
    bands = [slice(start - 1, end - 1) for start, end in pairwise([*BANDS, lists.h + 1])]
    bands = [band for band in bands if is_listed[:, band].any()]
    limits = {margin: margin * np.abs(positive) for margin in MARGINS} if bands else {}
    return {
        margin: [float((below[:, band] >= limit).sum() / is_listed[:, band].sum()) for band in bands]
        for margin, limit in limits.items()
    }


def recommended_margin(kept: Mapping[str, Mapping[float, Sequence[float]]]) -> tuple[str, float | None, str]:
    """Choose the positive and the `relative_margin` by what they keep in the first of BANDS, and give the reason.

    The usual margin is preferred, or the nearest one that keeps between FEWEST and MOST; then the lowest positive. The
    margin is None if none does.
    """
    head = {(name, margin): shares[0] for name, each in kept.items() for margin, shares in each.items()}
    usable = [one for one, share in head.items() if FEWEST <= share <= MOST]
    usual = next(iter(kept)), USUAL
    name, margin = min(usable, key=lambda one: abs(one[1] - USUAL), default=(usual[0], None))
    rejects = "nearly everything" if head[usual] < FEWEST else "nothing" if head[usual] > MOST else ""
    why = [f"{_limit(*usual)} rejects {rejects} in the first ranks"] if rejects else []
    if margin is None:
        none = f"no percentage here keeps between {FEWEST:.0%} and {MOST:.0%} of them"
        return name, None, f"{why[0]}, and {none}: screen by rank, by text or by a judge instead"
    first, *others = kept[name][margin]
    last = f" and {others[-1]:.0%} in the last" if others else ""
    return name, margin, "; ".join([*why, f"{_limit(name, margin)} keeps {first:.0%} in the first ranks{last}"])


def _limit(name: str, margin: float) -> str:
    return f"a limit of {1 - margin:.0%} of the {name} positive's score"


def compare(
    one: NegativeTable, other: NegativeTable, depth: int | None = None, changed: int = 5
) -> dict[str, Difference]:
    """Compare two tables' lists, direction by direction, to `depth` or to the depth of the shallower."""
    if one.directions != other.directions:
        raise ValueError("one table holds one set, the other has two sides; compare tables of one data set.")
    differences: dict[str, Difference] = {}
    for direction in one.directions:
        a, b = one[direction], other[direction]
        if len(a) != len(b):
            raise ValueError(
                f"the tables have {len(a)} and {len(b)} {direction} lists; compare tables of one data set."
            )
        most = min(a.h, b.h)
        cut = most if depth is None else depth
        if not 1 <= cut <= most:
            raise ValueError(f"depth is {cut}, but the shorter {direction} lists have {most}; choose 1 to {most}.")
        differences[direction] = difference(a.negative_ids[:, :cut], b.negative_ids[:, :cut], changed=changed)
    return differences


def data_differ(one: NegativeTable, other: NegativeTable) -> str:
    """Say why two tables seem to come from different data, or return an empty string.

    Ids decide where both tables have them. Different fingerprints may be two programs' names for the same data, so the
    true pairs must differ as well.
    """
    for side in one.ids.keys() & other.ids.keys():
        if list(one.ids[side]) != list(other.ids[side]):
            return f"the tables have different ids of {side}"
    if one.manifest.get("dataset") == other.manifest.get("dataset") or one.positives is None or other.positives is None:
        return ""
    are_equal = np.array_equal(np.unique(one.positives, axis=0), np.unique(other.positives, axis=0))
    return "" if are_equal else "the tables have different true pairs and different fingerprints of their data"


def difference(
    one: Int32[np.ndarray, "anchors depth"], other: Int32[np.ndarray, "anchors depth"], *, changed: int = 5
) -> Difference:
    anchors, depth = one.shape
    (rows, places), (other_rows, other_places) = (np.nonzero(lists >= 0) for lists in (one, other))
    keys = pair_keys(rows, one[rows, places], ID_COUNT)
    other_keys = pair_keys(other_rows, other[other_rows, other_places], ID_COUNT)
    shared, left, right = np.intersect1d(keys, other_keys, assume_unique=True, return_indices=True)
    counts = np.zeros((anchors, depth), dtype=np.int64)
    np.add.at(counts, (shared // ID_COUNT, np.maximum(places[left], other_places[right])), 1)
    common = counts.cumsum(axis=1)  # the ids that the first d places of both lists share, for every d
    length = np.maximum((one >= 0).sum(axis=1), (other >= 0).sum(axis=1))
    most = np.minimum(np.arange(1, depth + 1), length[:, None])  # what equal lists share
    weights = PERSISTENCE ** np.arange(depth) / np.arange(1, depth + 1)
    overlap, biased = (
        np.divide(shares, of, out=np.ones(anchors), where=length > 0)  # empty lists are equal
        for shares, of in ((common[:, -1], length), (common @ weights, most @ weights))
    )
    order = np.argsort(overlap, kind="stable")[:changed]
    return Difference(
        depth=depth,
        overlap=float(overlap.mean()),
        rank_biased_overlap=float(biased.mean()),
        same_order=float((one == other).all(axis=1).mean()),
        most_changed=[(int(row), float(overlap[row])) for row in order],
    )


def _quantiles(values: Float[np.ndarray, " rows"]) -> list[float] | None:
    finite = values[np.isfinite(values)]
    return [round(float(value), 6) for value in np.quantile(finite, QUANTILES)] if len(finite) else None
