"""What a report says of its runs, read from their artefacts; what is not there yet is None, and the page has a gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.data.folder import Split, open_split
from aoq.pipeline.evaluation.cross_retrieval import cross_retrieval_ranks, rank_histogram
from aoq.pipeline.evaluation.retrieval import Ranks, folded_ranks, summarise
from aoq.pipeline.evaluation.significance import Comparison, Interval, compare_runs, metric_intervals
from aoq.pipeline.planning.chain import Chain, same_queries, table_owner
from aoq.pipeline.training.metrics import read_metrics

SEED = 0
"""The bootstraps' seed: a report of the same runs says the same."""


@dataclass(frozen=True)
class Scored:
    """A run on its evaluation split; the similarities stay on disk."""

    similarity: Float32[np.ndarray, "images captions"]
    ranks: Ranks
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    cross_ranks: Int64[np.ndarray, " intervals"]
    evaluation: dict[str, Any]
    """Its manifest, with what was measured beyond the pairs."""


@dataclass(frozen=True)
class Run:
    """An experiment of the report, or an ensemble."""

    name: str
    chain: Chain
    split: Split
    """The one that it is evaluated on."""
    scored: Scored | None
    against_first: Comparison | None
    """Beside the report's first run, where both answered the same queries."""

    @property
    def trains(self) -> bool:
        return not self.chain.members and self.chain.experiment.weights is None


def collect_runs(named: Sequence[tuple[str, Chain]]) -> list[Run]:
    runs: list[Run] = []
    for name, chain in named:
        split = open_split(chain.folder, chain.experiment.evaluation.split)
        scored = _score(chain, split)
        first = runs[0] if runs else None
        comparison = None
        if scored and first and first.scored and same_queries(first.chain, chain):
            rng = np.random.default_rng(SEED)
            comparison = compare_runs(scored.ranks, first.scored.ranks, split.image_of, rng=rng)
        runs.append(Run(name, chain, split, scored, comparison))
    return runs


def _score(chain: Chain, split: Split) -> Scored | None:
    evaluation = chain["evaluation"]
    if not evaluation.exists():
        return None
    similarity = np.load(evaluation.path / "similarity.npy", mmap_mode="r")
    ranks = folded_ranks(similarity, split.image_of, folds=chain.experiment.evaluation.folds)
    intervals = metric_intervals(ranks, split.image_of, rng=np.random.default_rng(SEED))
    histogram = rank_histogram(cross_retrieval_ranks(similarity, split.image_of))
    return Scored(similarity, ranks, summarise(ranks), intervals, histogram, evaluation.manifest())


def best_of(runs: Sequence[Run], metric: str) -> float | None:
    values = [run.scored.metrics[metric] for run in runs if run.scored]
    return max(values) if values else None


def measured(runs: Sequence[Run], what: str) -> dict[str, Any]:
    """What evaluations measured beyond the pairs, by run, where they did."""
    return {run.name: run.scored.evaluation[what] for run in runs if run.scored and what in run.scored.evaluation}


def training_lines(run: Run) -> list[dict[str, Any]]:
    """The log of the run's training, finished or not."""
    artifact = run.chain["second_round"]
    for folder in (artifact.path, artifact.work):
        if (folder / "metrics.jsonl").is_file():
            return read_metrics(folder / "metrics.jsonl")
    return []


def collect_stages(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every artefact that a run rests on, once, with the runs that share it; and controls, where they were made."""
    found: dict[str, tuple[list[str], Artifact]] = {}
    for run in runs:
        stages = run.chain.stages.items()
        made = [artifact for stage, artifact in stages if artifact.exists() or stage == "evaluation"]
        for artifact in (each for one in made for each in _lineage(one)):
            names = found.setdefault(f"{artifact.stage}/{artifact.key}", ([], artifact))[0]
            if run.name not in names:
                names.append(run.name)
    return [
        {"runs": names, "artifact": artifact, "manifest": artifact.manifest() if artifact.exists() else None}
        for names, artifact in found.values()
    ]


def _lineage(artifact: Artifact) -> Iterator[Artifact]:
    """What it was made of, and then itself."""
    for upstream in artifact.upstream:
        yield from _lineage(upstream)
    yield artifact


def collect_tables(runs: Sequence[Run]) -> list[tuple[list[str], Chain, dict[str, Any] | None]]:
    """The negative tables that runs train on, each once: the runs, the table's owner, what the runs' screen takes."""
    users: dict[str, tuple[list[str], Chain, dict[str, Any] | None]] = {}
    for run in runs:
        owner = table_owner(run.chain)
        if owner and run.chain.trains_on_table and (made := owner["hard_negatives"]).exists():
            screen = run.chain.stages.get("screen")
            taken = screen.manifest()["directions"] if screen and screen.exists() else None
            users.setdefault(made.key + (screen.key if screen else ""), ([], owner, taken))[0].append(run.name)
    return list(users.values())
