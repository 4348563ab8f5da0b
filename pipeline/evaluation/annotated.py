"""Evaluation against annotations beyond the pairs (`aoq.pipeline.data.annotations`).

R-Precision, mAP@R and recall at K suit queries with many right answers (Musgrave et al., ECCV 2020). PMRP is
R-Precision where images that show nearly the same count as matches (PCME, Chun et al., CVPR 2021). Ties count against
the relevant candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from aoq.pipeline.data.annotations import RightPairs, ScoredPairs, read_annotations
from aoq.pipeline.data.folder import Split
from aoq.pipeline.evaluation.retrieval import ImageOf, K, Similarity
from aoq.pipeline.extras import import_extra
from aoq.pipeline.search.positives import matching_pairs, unique_pairs
from aoq.pipeline.search.problem import DIRECTIONS, Direction
from aoq.pipeline.tables.pairs import group_positives

_BLOCK_COLUMNS = 512
ZETAS = (0, 1, 2)
RELEVANCE = ("r_precision", "map_r", *(f"r{k}" for k in K), "ndcg_10", "mrr")
FIRST = 10
"""Ranks that count in `ndcg_10`."""
_QueryScores = Float[np.ndarray, " candidates"]
_CandidateRows = Int[np.ndarray, " some"]


def measure_annotations(similarity: Similarity, split: Split, folder: Path, *, folds: int) -> dict[str, Any]:
    """Measure against all annotations of the folder: `relevance` and `judgements` by file, `plausible` (PMRP).

    `relevance` also measures the split's own `pairs`, unless folds divide them.
    """
    known = read_annotations(folder, split)
    images, captions = matching_pairs(split.image_of, split.identity).T.astype(np.int64)
    relevance = {"pairs": dict.fromkeys(("i2t", "t2i"), (images, captions))} if folds == 1 else {}
    relevance |= known.relevance
    measures: dict[str, Any] = {}
    if relevance:
        measures["relevance"] = {
            name: {one: _measure_relevance(similarity, one, both[one]) for one in DIRECTIONS if one in both}
            for name, both in relevance.items()
        }
    if known.classes is not None:
        measures["plausible"] = pmrp(similarity, split.image_of, known.classes, folds=folds)
    if known.judgements:
        measures["judgements"] = {
            name: judgement_agreement(similarity, split.image_of, judged) for name, judged in known.judgements.items()
        }
    return measures


def _measure_relevance(similarity: Similarity, direction: Direction, pairs: RightPairs) -> dict[str, float]:
    queries = similarity if direction == "i2t" else columns(similarity, np.arange(similarity.shape[1]))
    return summarise_relevance(queries, relevant(direction, np.stack(pairs, axis=1), *similarity.shape))


def relevant(
    direction: Direction, pairs: Int[np.ndarray, "pairs 2"], images: int, captions: int
) -> list[_CandidateRows]:
    """Group the right answers of each query, rising; pairs (image, caption) come in any order, repeated or not."""
    anchors = images if direction == "i2t" else captions
    own = group_positives(direction, unique_pairs(pairs, images, captions), anchors)
    return [own[anchor] for anchor in range(anchors)]


def ranks_of_relevant(scores: _QueryScores, right: _CandidateRows) -> _CandidateRows:
    """Return the ranks of a query's right answers among all candidates, from 1, rising.

    >>> ranks_of_relevant(np.array([0.5, 0.9, 0.7, 0.7]), np.array([0, 2]))
    array([3, 4])
    """
    own = -np.sort(-scores[right])  # falling
    # The number of right answers that rank before each candidate: those with a higher score.
    before = np.searchsorted(-own, -scores, side="left")
    wrong = np.bincount(before, minlength=len(own) + 1) - np.bincount(before[right], minlength=len(own) + 1)
    return wrong.cumsum()[: len(own)] + np.arange(1, len(own) + 1)


def columns(similarity: Similarity, captions: Int[np.ndarray, " some"]) -> Iterator[Float[np.ndarray, " images"]]:
    """Iterate over the scores of these captions; a matrix on disk is read in groups of columns."""
    for start in range(0, len(captions), _BLOCK_COLUMNS):
        yield from np.ascontiguousarray(similarity[:, captions[start : start + _BLOCK_COLUMNS]].T)


def summarise_relevance(
    similarity: Iterable[_QueryScores], right: Sequence[Int[np.ndarray, " _some"]]
) -> dict[str, float]:
    """Average in percent over the queries that have right answers; `similarity` yields a row per query, in order.

    r_precision  fraction of right answers among the first R candidates, R being their number
    map_r        1/R * sum over r <= R of (precision among the first r) * (is the r-th right?)
    r1, r5, r10  a right answer among the first K
    ndcg_10      sum over right answers of rank r <= 10 of 1 / log2(r + 1), divided by its largest value
    mrr          1 / the rank of the first right answer
    """
    rows, discounts = [], 1 / np.log2(np.arange(2, FIRST + 2))
    for query, (scores, ids) in enumerate(zip(similarity, right, strict=True)):
        if len(ids):
            _check_finite(scores, query)
            ranks = ranks_of_relevant(scores, ids)
            is_hit = ranks <= len(ids)
            precision = np.arange(1, len(ids) + 1) / ranks
            gain = discounts[ranks[ranks <= FIRST] - 1].sum() / discounts[: len(ids)].sum()
            recalls = (ranks[0] <= k for k in K)
            rows.append([is_hit.mean(), (precision * is_hit).sum() / len(ids), *recalls, gain, 1 / ranks[0]])
    if not rows:
        raise ValueError("no query has a right answer; does the file belong to this split?")
    return dict(zip(RELEVANCE, (100.0 * np.sum(rows, axis=0) / len(rows)).tolist(), strict=True))


def pmrp(
    similarity: Similarity, image_of: ImageOf, classes: Bool[np.ndarray, "images classes"], *, folds: int = 1
) -> dict[str, float]:
    """Return PMRP in percent for both directions: `i2t_pmrp`, `t2i_pmrp`.

    Two items match if their images differ in at most zeta classes; the mean is over queries, then over zeta = 0, 1, 2,
    then over folds of consecutive images. Images without any class are left out, with their captions. An item's own
    image counts as a match. Memory holds some columns of the similarity.
    """
    images = len(similarity)
    if images % folds:
        raise ValueError(f"{images} images do not divide into {folds} folds.")
    size, by_fold = images // folds, []
    for start in range(0, images, size):
        shown = start + np.flatnonzero(classes[start : start + size].any(axis=1))
        if not len(shown):
            raise ValueError(f"none of images {start} to {start + size - 1} shows any class.")
        captions = np.flatnonzero(np.isin(image_of, shown))
        own, of = np.arange(len(shown)), np.searchsorted(shown, image_of[captions])
        i2t = _r_precision((similarity[image][captions] for image in shown), own, of, classes[shown])
        t2i = _r_precision((scores[shown] for scores in columns(similarity, captions)), of, own, classes[shown])
        by_fold.append((i2t, t2i))
    i2t, t2i = np.mean(by_fold, axis=0).tolist()
    return {"i2t_pmrp": i2t, "t2i_pmrp": t2i}


def _r_precision(
    similarity: Iterable[_QueryScores],
    queries: Int64[np.ndarray, " queries"],
    candidates: Int64[np.ndarray, " candidates"],
    shown: Bool[np.ndarray, "images classes"],
) -> float:
    """Average in percent over queries and zetas; `queries` and `candidates` name the image of each."""
    total = 0.0
    for query, scores in enumerate(similarity):
        _check_finite(scores, query)
        differ = np.count_nonzero(shown != shown[queries[query]], axis=1)[candidates]
        for right in (np.flatnonzero(differ <= zeta) for zeta in ZETAS):
            total += float((ranks_of_relevant(scores, right) <= len(right)).mean())
    return 100.0 * total / (len(queries) * len(ZETAS))


def _check_finite(scores: _QueryScores, query: int) -> None:
    if len(places := np.flatnonzero(~np.isfinite(scores))):
        raise ValueError(f"the similarity of query {query} and candidate {places[0]} is {scores[places[0]]}.")


def judgement_agreement(similarity: Similarity, image_of: ImageOf, judged: ScoredPairs) -> dict[str, float | None]:
    """Return rank correlations of the scores with mean human scores, in percent, and the human scores of errors.

    spearman, kendall   over all judged pairs (tau-b)
    judged              number of pairs
    false_hits          captions whose first image is another one, if that pair was judged
    right_from          midpoint of the lowest and the highest human score
    right_share         fraction of false hits with at least that human score; None if there are none
    """
    captions = similarity.shape[1]
    keys, place = np.unique(judged.images * captions + judged.captions, return_inverse=True)
    people = np.bincount(place, weights=judged.scores) / np.bincount(place)
    scores = similarity[keys // captions, keys % captions]
    if len(np.unique(people)) < 2 or len(np.unique(scores)) < 2:
        raise ValueError(f"all {len(keys)} judged pairs have the same score; there is nothing to correlate.")
    stats = import_extra("scipy.stats", "eccv", "the correlation with human judgements")
    first = np.array([scores.argmax() for scores in columns(similarity, np.arange(captions))])
    false_keys = (first * captions + np.arange(captions))[first != image_of]
    judgements = people[np.isin(keys, false_keys)]
    right_from = float(judged.scores.min() + judged.scores.max()) / 2
    return {
        "spearman": 100.0 * float(stats.spearmanr(scores, people).statistic),
        "kendall": 100.0 * float(stats.kendalltau(scores, people).statistic),
        "judged": len(keys),
        "false_hits": len(judgements),
        "right_from": right_from,
        "right_share": 100.0 * float((judgements >= right_from).mean()) if len(judgements) else None,
    }
