"""Collect a report's content from artefacts; parts that do not exist yet are None and leave a gap in the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.data.folder import Split
from aoq.pipeline.evaluation.ranks import DEV_RANKS, read_ranks
from aoq.pipeline.evaluation.retrieval import (
    Ranks,
    cross_retrieval_ranks,
    folded_ranks,
    open_similarity,
    rank_histogram,
    summarise,
)
from aoq.pipeline.evaluation.significance import Comparison, Interval, compare_runs, metric_intervals
from aoq.pipeline.report.labels import labels
from aoq.pipeline.stages.chain import Chain, Member, same_queries, teacher_of, trains_as_control
from aoq.pipeline.stages.splits import open_checked
from aoq.pipeline.training.metrics import read_metrics

SEED = 0
"""Seed of the bootstraps, so that a report of the same runs is reproducible."""


@dataclass(frozen=True)
class Scored:
    """A run on its evaluation split; the similarities stay on disk."""

    similarity: Float32[np.ndarray, "images captions"]
    ranks: Ranks
    metrics: dict[str, float]
    intervals: dict[str, Interval]
    cross_ranks: Int64[np.ndarray, " intervals"]
    evaluation: dict[str, Any]
    """Manifest of the evaluation, which may hold further measurements."""


@dataclass(frozen=True)
class Run:
    """An experiment of the report, or an ensemble."""

    name: str
    label: str
    chain: Chain
    split: Split
    """The evaluation split."""
    scored: Scored | None
    baseline: str | None
    """The run it is compared with, if there is one."""
    gain: Comparison | None
    """Gain over the baseline, if both answered the same queries."""

    @property
    def trains(self) -> bool:
        return not self.chain.members and self.chain.experiment.weights is None

    @property
    def data(self) -> str:
        """The folder or the source of the data, as the experiment names it."""
        chain = self.chain.members[0].chain if self.chain.members else self.chain
        dataset = chain.experiment.dataset
        return dataset.folder or (dataset.source.path if dataset.source else "the generated world")


@dataclass(frozen=True)
class Teacher:
    """The training that scored a table, evaluated on its dev split."""

    label: str
    model: str
    split: str
    metrics: dict[str, float]
    intervals: dict[str, Interval]


def collect_runs(named: Sequence[tuple[str, Chain]]) -> list[Run]:
    """Collect named runs, each compared with its baseline."""
    chains = dict(named)
    label_of = labels(chains)
    splits = {name: open_checked(chain, chain.experiment.evaluation.split) for name, chain in named}
    scored = {name: _score(chain, splits[name]) for name, chain in named}
    runs, evaluated = [], {name: chain for name, chain in named if scored[name]}
    for name, chain in named:
        baseline = _baseline(name, chain, evaluated)
        ours, theirs, comparison = scored[name], baseline and scored[baseline], None
        if baseline and ours and theirs and same_queries(chains[baseline], chain):
            rng = np.random.default_rng(SEED)
            comparison = compare_runs(ours.ranks, theirs.ranks, splits[name].image_of, rng=rng)
        runs.append(Run(name, label_of[name], chain, splits[name], ours, baseline, comparison))
    return runs


def _baseline(name: str, chain: Chain, evaluated: Mapping[str, Chain]) -> str | None:
    """Choose the control of a run that trains on a table, or for other runs the first control or else the first run.

    None for a control, for the first run, and if the run's own control is not evaluated: a gain over the control of
    another model would say nothing about the table.
    """
    if is_control(chain):
        return None
    own = [other for other, its_chain in evaluated.items() if trains_as_control(its_chain, chain)]
    controls = [other for other, its_chain in evaluated.items() if is_control(its_chain)]
    others = [] if chain.trains_on_table else [*controls, *evaluated]
    baseline = next(iter([*own, *others]), None)
    return None if baseline == name else baseline


def is_control(chain: Chain) -> bool:
    """Return whether the run trains exactly as its own control does."""
    return trains_as_control(chain, chain)


def collect_teachers(runs: Sequence[Run]) -> list[Teacher]:
    """Collect the trained teachers of runs that train on a table, each once."""
    found: dict[str, tuple[Member, list[str]]] = {}
    for run in runs:
        teacher = teacher_of(run.chain) if run.chain.trains_on_table else None
        if teacher and teacher.artifact.exists() and DEV_RANKS in teacher.artifact.manifest()["files"]:
            _, taught = found.setdefault(teacher.artifact.key, (teacher, []))
            taught.append(run.label)
    return [
        _teacher(teacher, "teacher" if len(found) == 1 else f"teacher of {', '.join(taught)}")
        for teacher, taught in found.values()
    ]


def _teacher(teacher: Member, label: str) -> Teacher:
    experiment = teacher.chain.experiment
    split = open_checked(teacher.chain, experiment.dataset.dev)
    ranks = read_dev_ranks(teacher.artifact, split)
    intervals = metric_intervals(ranks, split.image_of, rng=np.random.default_rng(SEED))
    return Teacher(label, experiment.model.name, split.name, summarise(ranks), intervals)


def read_dev_ranks(training: Artifact, split: Split) -> Ranks:
    return read_ranks(training.opened() / DEV_RANKS, images=split.image_count, captions=split.caption_count)


def seeds_of(run: Run, runs: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Pair the run, and the runs that differ from it only in the seed, with their baselines.

    Another seed counts only with a baseline of the same seed.
    """

    def but_seed(one: Run) -> Any:
        return one.chain.experiment.model_dump(mode="json", exclude={"seed"}), one.chain["dataset"].key

    by_name = {one.name: one for one in runs}
    pairs = [
        (one, by_name[one.baseline]) for one in runs if one.baseline and one.gain and but_seed(one) == but_seed(run)
    ]
    same = [pair for pair in pairs if len({one.chain.experiment.seed for one in pair}) == 1]
    return same if len(same) > 1 else [pair for pair in pairs if pair[0] is run]


def _score(chain: Chain, split: Split) -> Scored | None:
    evaluation = chain["evaluation"]
    if not evaluation.exists():
        return None
    similarity = open_similarity(evaluation.opened() / "similarity.npy", split.image_count, split.caption_count)
    ranks = folded_ranks(similarity, split.image_of, split.identity, folds=chain.experiment.evaluation.folds)
    intervals = metric_intervals(ranks, split.image_of, rng=np.random.default_rng(SEED))
    cross_ranks = rank_histogram(cross_retrieval_ranks(similarity, split.image_of, split.identity))
    return Scored(similarity, ranks, summarise(ranks), intervals, cross_ranks, evaluation.manifest())


def measured(runs: Sequence[Run], what: str) -> dict[str, Any]:
    """Collect one kind of further measurements, by run."""
    return {run.name: run.scored.evaluation[what] for run in runs if run.scored and what in run.scored.evaluation}


def training_lines(run: Run) -> list[dict[str, Any]]:
    """Read the log of the run's training, finished or not."""
    artifact = run.chain["second_round"]
    log = (artifact.opened() if artifact.exists() else artifact.work) / "metrics.jsonl"
    return read_metrics(log) if log.is_file() else []


def collect_stages(runs: Sequence[Run]) -> list[tuple[Artifact, list[str]]]:
    """List every artefact that a run depends on, and existing controls, once each with the runs that share it."""
    found: dict[Path, tuple[Artifact, list[str]]] = {}
    for run in runs:
        stages = run.chain.stages.items()
        roots = [artifact for stage, artifact in stages if artifact.exists() or stage == "evaluation"]
        for artifact in (each for root in roots for each in _lineage(root)):
            _, names = found.setdefault(artifact.path, (artifact, []))
            if run.name not in names:
                names.append(run.name)
    return list(found.values())


def _lineage(artifact: Artifact) -> Iterator[Artifact]:
    """Yield the artefact's inputs, then the artefact."""
    for upstream in artifact.upstream:
        yield from _lineage(upstream)
    yield artifact
