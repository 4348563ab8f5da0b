"""Collect a report's content from artefacts; missing parts are None and leave a gap in the page."""

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
from aoq.pipeline.planning.chain import Chain, Member, same_queries, teacher_of, trains_as_control
from aoq.pipeline.planning.opening import open_checked
from aoq.pipeline.report.labels import labels
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
    """Manifest of the evaluation, with measurements beyond the pairs."""


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
        """The folder or the source of the data, as the experiment says it."""
        of = self.chain.members[0].chain if self.chain.members else self.chain
        said = of.experiment.dataset
        return said.folder or (said.source.path if said.source else "the generated world")


@dataclass(frozen=True)
class Teacher:
    """The training that scored the table of runs, on its dev split."""

    label: str
    model: str
    split: str
    metrics: dict[str, float]
    intervals: dict[str, Interval]


def collect_runs(named: Sequence[tuple[str, Chain]]) -> list[Run]:
    """The runs by what they are called; each is compared with its baseline."""
    chains = dict(named)
    called = labels(chains)
    splits = {name: open_checked(chain, chain.experiment.evaluation.split) for name, chain in named}
    scored = {name: _score(chain, splits[name]) for name, chain in named}
    runs, evaluated = [], {name: chain for name, chain in named if scored[name]}
    for name, chain in named:
        baseline = _baseline(name, chain, evaluated)
        ours, theirs, comparison = scored[name], baseline and scored[baseline], None
        if baseline and ours and theirs and same_queries(chains[baseline], chain):
            rng = np.random.default_rng(SEED)
            comparison = compare_runs(ours.ranks, theirs.ranks, splits[name].image_of, rng=rng)
        runs.append(Run(name, called[name], chain, splits[name], ours, baseline, comparison))
    return runs


def _baseline(name: str, chain: Chain, evaluated: Mapping[str, Chain]) -> str | None:
    """The own control of a run that trains on a table; of others the first control, else the first run.

    None of a control, of the first run, and where the own control is not evaluated: the gain over another model's
    control is no gain of the table.
    """
    if is_control(chain):
        return None
    own = [other for other, made in evaluated.items() if trains_as_control(made, chain)]
    controls = [other for other, made in evaluated.items() if is_control(made)]
    others = [] if chain.trains_on_table else [*controls, *evaluated]
    found = next(iter([*own, *others]), None)
    return None if found == name else found


def is_control(chain: Chain) -> bool:
    """True if the run trains as its own control does."""
    return trains_as_control(chain, chain)


def collect_teachers(runs: Sequence[Run]) -> list[Teacher]:
    """The teachers of runs that train on a table, once each, as far as they were trained."""
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
    """The run and those that differ from it in the seed alone, each with its own baseline of the same seed."""
    by_name = {one.name: one for one in runs}
    pairs = [(one, by_name[one.baseline]) for one in runs if one.baseline and one.gain]
    return [(one, other) for one, other in pairs if _but_seed(one) == _but_seed(run) and _seed(one) == _seed(other)]


def _seed(run: Run) -> int:
    return run.chain.experiment.seed


def _but_seed(run: Run) -> Any:
    return run.chain.experiment.model_dump(mode="json", exclude={"seed"}), run.chain["dataset"].key


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
    """Collect an evaluation's measurements beyond the pairs, by run, if there are any."""
    return {run.name: run.scored.evaluation[what] for run in runs if run.scored and what in run.scored.evaluation}


def training_lines(run: Run) -> list[dict[str, Any]]:
    """Read the log of the run's training, finished or not."""
    artifact = run.chain["second_round"]
    log = (artifact.opened() if artifact.exists() else artifact.work) / "metrics.jsonl"
    return read_metrics(log) if log.is_file() else []


def collect_stages(runs: Sequence[Run]) -> list[tuple[Artifact, list[str]]]:
    """List every artefact that a run depends on, once, with the runs that share it; controls too, if they were made."""
    found: dict[Path, tuple[Artifact, list[str]]] = {}
    for run in runs:
        made = [artifact for stage, artifact in run.chain.stages.items() if artifact.exists() or stage == "evaluation"]
        for artifact in (each for one in made for each in _lineage(one)):
            _, names = found.setdefault(artifact.path, (artifact, []))
            if run.name not in names:
                names.append(run.name)
    return list(found.values())


def _lineage(artifact: Artifact) -> Iterator[Artifact]:
    """Iterate over the artefacts that it was made of, then itself."""
    for upstream in artifact.upstream:
        yield from _lineage(upstream)
    yield artifact
