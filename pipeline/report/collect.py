"""Collect a report's content from artefacts; parts that do not exist yet are None and leave a gap in the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int64

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.config.load import split_member
from aoq.pipeline.data.folder import Split
from aoq.pipeline.evaluation.ranks import DEV_RANKS, read_ranks
from aoq.pipeline.evaluation.retrieval import EDGES, Ranks, cross_retrieval_ranks, summarise
from aoq.pipeline.evaluation.significance import Comparison, Interval, compare_runs, metric_intervals
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.stages.chain import Chain, Member, find_teachers, run_name, same_queries, trains_as_control
from aoq.pipeline.stages.splits import evaluated_ranks, open_checked, open_evaluated

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
class ReportedRun:
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
    def on_dev(self) -> dict[str, Any]:
        """The dev recalls of a run that is trained and not evaluated."""
        return dev_recalls(self.chain, self.chain["second_round"]) if self.trains and self.scored is None else {}

    @property
    def data(self) -> str:
        """The folder or the source of the data, as the experiment names it."""
        chain = self.chain.members[0].chain if self.chain.members else self.chain
        dataset = chain.experiment.dataset
        return dataset.folder or (dataset.source.path if dataset.source else "the generated world")


def collect_runs(named: Sequence[tuple[str, Chain]]) -> list[ReportedRun]:
    """Collect named runs, each compared with its baseline."""
    chains = dict(named)
    labels = run_labels(chains)
    splits = {name: open_checked(chain, chain.experiment.evaluation.split) for name, chain in named}
    scored = {name: _score_run(chain, splits[name]) for name, chain in named}
    runs, evaluated = [], {name: chain for name, chain in named if scored[name]}
    for name, chain in named:
        baseline = _baseline(name, chain, evaluated)
        ours, theirs, comparison = scored[name], baseline and scored[baseline], None
        if baseline and ours and theirs and same_queries(chains[baseline], chain):
            rng = np.random.default_rng(SEED)
            comparison = compare_runs(ours.ranks, theirs.ranks, splits[name].image_of, rng=rng)
        runs.append(ReportedRun(name, labels[name], chain, splits[name], ours, baseline, comparison))
    return runs


def _baseline(name: str, chain: Chain, evaluated: Mapping[str, Chain]) -> str | None:
    """Choose a run's control if a table or teachers' scores teach it, else the first control, or else the first run.

    None for a control, for the first run, and if the run's own control is not evaluated: a gain over the control of
    another model would say nothing about its teaching.
    """
    if is_control(chain):
        return None
    own = [other for other, its_chain in evaluated.items() if trains_as_control(its_chain, chain)]
    controls = [other for other, its_chain in evaluated.items() if is_control(its_chain)]
    others = [] if chain.is_taught else [*controls, *evaluated]
    baseline = next(iter([*own, *others]), None)
    return None if baseline == name else baseline


def is_control(chain: Chain) -> bool:
    """Return whether the run trains exactly as its own control does."""
    return trains_as_control(chain, chain)


def collect_teachers(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """Evaluate the trained teachers of runs that they teach on their dev splits, each once."""
    teachers: dict[str, tuple[Member, str, list[str]]] = {}
    for run in runs:
        for title, teacher in find_teachers(run.chain) if run.chain.is_taught else ():
            if has_ranks(teacher.artifact):
                teachers.setdefault(teacher.artifact.key, (teacher, title, []))[2].append(run.label)
    described = []
    for teacher, title, taught in teachers.values():
        label = "teacher" if len(teachers) == 1 else f"teacher of {', '.join(taught)}"
        label = label if title == "teacher" else teacher.run
        about = {"label": label, "model": teacher.chain.experiment.model.name}
        described.append(about | dev_recalls(teacher.chain, teacher.artifact))
    return described


def dev_recalls(chain: Chain, training: Artifact) -> dict[str, Any]:
    """Return the recalls of a training's best epoch on its dev split, with their intervals, once it exists."""
    if not has_ranks(training):
        return {}
    split = open_checked(chain, chain.experiment.dataset.dev)
    ranks = read_dev_ranks(training, split)
    intervals = metric_intervals(ranks, split.image_of, rng=np.random.default_rng(SEED))
    return {"split": split.name, "metrics": summarise(ranks), "intervals": intervals}


def has_ranks(training: Artifact) -> bool:
    """Return whether a training is finished and has the ranks of its best epoch on dev."""
    return training.exists() and DEV_RANKS in training.manifest()["files"]


def read_dev_ranks(training: Artifact, split: Split) -> Ranks:
    return read_ranks(training.opened() / DEV_RANKS, images=split.image_count, captions=split.caption_count)


def pair_seeds(run: ReportedRun, runs: Sequence[ReportedRun]) -> list[tuple[ReportedRun, ReportedRun]]:
    """Pair the run, and the runs that differ from it only in the seed, with their baselines.

    Another seed counts only with a baseline of the same seed.
    """

    def but_seed(one: ReportedRun) -> Any:
        return one.chain.experiment.model_dump(mode="json", exclude={"seed"}), one.chain["dataset"].key

    by_name = {one.name: one for one in runs}
    pairs = [
        (one, by_name[one.baseline]) for one in runs if one.baseline and one.gain and but_seed(one) == but_seed(run)
    ]
    same = [pair for pair in pairs if len({one.chain.experiment.seed for one in pair}) == 1]
    return same if len(same) > 1 else [pair for pair in pairs if pair[0] is run]


def _score_run(chain: Chain, split: Split) -> Scored | None:
    evaluation = chain["evaluation"]
    if not evaluation.exists():
        return None
    similarity, ranks = open_evaluated(chain)[1], evaluated_ranks(chain)
    intervals = metric_intervals(ranks, split.image_of, rng=np.random.default_rng(SEED))
    cross_ranks, _ = np.histogram(cross_retrieval_ranks(similarity, split.image_of, split.identity), [*EDGES, np.inf])
    return Scored(similarity, ranks, evaluation.manifest()["metrics"], intervals, cross_ranks, evaluation.manifest())


class Answer(NamedTuple):
    """A candidate that a run finds for a query; the best has rank 1."""

    rank: int
    row: int
    score: float
    is_right: bool


def ranked_answers(similarity: np.ndarray, split: Split, direction: Direction, query: int) -> list[Answer]:
    """List all candidates, best first; among ties the right ones come last, as recalls count them."""
    scores = np.asarray(similarity[query] if direction == "i2t" else similarity[:, query])
    is_right = np.isin(np.arange(len(scores)), split.find_answers(direction, query))
    order = np.lexsort((is_right, -scores))
    ranked = zip(order.tolist(), scores[order].tolist(), is_right[order].tolist(), strict=True)
    return [Answer(rank, *candidate) for rank, candidate in enumerate(ranked, start=1)]


def collect_stages(runs: Sequence[ReportedRun]) -> list[tuple[Artifact, list[str]]]:
    """List every artefact that a run depends on, and existing controls, once each with the runs that share it."""
    users: dict[Path, tuple[Artifact, list[str]]] = {}
    for run in runs:
        roots = [one for stage, one in run.chain.stages.items() if one.exists() or stage == "evaluation"]
        for path, artifact in {each.path: each for root in roots for each in _lineage(root)}.items():
            users.setdefault(path, (artifact, []))[1].append(run.name)
    return list(users.values())


def _lineage(artifact: Artifact) -> Iterator[Artifact]:
    """Yield the artefact's inputs, then the artefact."""
    for upstream in artifact.upstream:
        yield from _lineage(upstream)
    yield artifact


def run_labels(named: Mapping[str, Chain]) -> dict[str, str]:
    """Label each run as its folder below `runs/` is named, such as "demo@seed=1", and a control after its run."""
    labels = {name: run_name(*split_member(name)) for name in named}
    for run, chain in reversed([*named.items()]):
        controls = (other for other in named if other != run and trains_as_control(named[other], chain))
        labels |= {control: f"{run_name(*split_member(run))} control" for control in controls}
    return labels
