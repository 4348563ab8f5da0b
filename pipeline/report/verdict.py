"""Gains of runs over their baselines: the verdict that opens the page, and that of `aoq results` on round two."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.evaluation.ranks import DEV_RANKS
from aoq.pipeline.evaluation.significance import Interval, compare_runs, rsum_intervals, verdict
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.opening import open_checked
from aoq.pipeline.report.collect import Run, read_dev_ranks, seeds_of
from aoq.pipeline.training.metrics import read_metrics, training_seconds

SHORTEST = 20.0
"""Seconds of a training, below which its time tells nothing."""


@dataclass(frozen=True)
class Verdict:
    """Gain of a run, or of its seeds together, over the baselines."""

    label: str
    baseline: str
    difference: float
    """Difference in rsum, the mean over seeds."""
    interval: Interval
    chance: str
    """p value, of one seed."""
    seeds: int
    images: int
    captions: int
    split: str
    times: float | None
    """The training time, divided by the control's."""

    @property
    def said(self) -> str:
        return said_of(self.interval)


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Judge each compared run; runs that differ in the seed alone are judged together."""
    found, judged = [], set[str]()
    for run in runs:
        if run.gain is None or run.name in judged:
            continue
        pairs = seeds_of(run, runs)
        judged |= {one.name for one, _ in pairs}
        found.append(_together(pairs) if len(pairs) > 1 else _alone(run, runs))
    return found


def on_dev(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """Gains of runs over controls that were trained and are not evaluated."""
    waiting = [run for run in runs if run.gain is None and run.chain.trains_on_table]
    return [(run, said) for run in waiting if (said := gain_on_control(run.chain))]


def _alone(run: Run, runs: Sequence[Run]) -> Verdict:
    assert run.gain is not None
    baseline = next(one.label for one in runs if one.name == run.baseline)
    return Verdict(
        label=_label(run, run.label),
        baseline=baseline,
        difference=run.gain.difference,
        interval=run.gain.interval,
        chance=run.gain.chance,
        seeds=1,
        times=time_to_control(run.chain),
        **_queries(run),
    )


def _together(pairs: Sequence[tuple[Run, Run]]) -> Verdict:
    """The seeds' mean, its interval over seeds and images."""
    (run, other), differences = pairs[0], [one.gain.difference for one, _ in pairs if one.gain]
    ours, theirs = ([one.scored.ranks for one in side if one.scored] for side in zip(*pairs, strict=True))
    rng = np.random.default_rng(0)
    interval = rsum_intervals({"ours": ours}, theirs, run.split.image_of, rng=rng)["ours"]
    label, baseline = (re.sub(r", seed \d+", "", one.label) for one in (run, other))
    times = [times for one, _ in pairs if (times := time_to_control(one.chain))]
    return Verdict(
        label=_label(run, label),
        baseline=baseline,
        difference=float(np.mean(differences)),
        interval=interval,
        chance="",
        seeds=len(pairs),
        times=float(np.mean(times)) if times else None,
        **_queries(run),
    )


def _label(run: Run, label: str) -> str:
    ahead = head_start(run.chain)
    return f"{label} (began {ahead})" if ahead else label


def _queries(run: Run) -> dict[str, Any]:
    return {"images": run.split.image_count, "captions": run.split.caption_count, "split": run.split.name}


def said_of(interval: Interval) -> str:
    """Say whether the difference can be told from chance.

    >>> said_of((-6.0, 1.3))
    'is not distinguishable from'
    """
    low, high = interval
    return "is better than" if low > 0 else "is worse than" if high < 0 else "is not distinguishable from"


def time_to_control(chain: Chain) -> float | None:
    """The seconds of the steps of round two divided by the control's, if both trainings are there and not too short."""
    rounds = _rounds(chain)
    if len(rounds) < 2:
        return None
    ours, theirs = (training_seconds(read_metrics(made.opened() / "metrics.jsonl")) for made in rounds)
    return ours / theirs if min(ours, theirs) >= SHORTEST else None


def head_start(chain: Chain) -> str:
    """Say what a fine-tuned student had before its first step, and its control, which begins afresh, had not."""
    if chain.start is None:
        return ""
    epochs = chain.start.recipe["ingredients"].get("training", {}).get("epochs")
    return f"after {epochs} epochs elsewhere" if epochs else "from imported weights"


def gain_on_control(chain: Chain) -> str | None:
    """Compare round two with the control, if both exist, are two trainings, and have ranks."""
    rounds = _rounds(chain)
    if len(rounds) < 2 or not all(DEV_RANKS in made.manifest()["files"] for made in rounds):
        return None
    split = open_checked(chain, chain.experiment.dataset.dev)
    ours, theirs = (read_dev_ranks(made, split) for made in rounds)
    name = "round two" if chain.experiment.co_teaching is None else "co-taught"
    found = compare_runs(ours, theirs, split.image_of, rng=np.random.default_rng(0))
    said, times = verdict(found, f"{name} - control", images=split.image_count), time_to_control(chain)
    if times:
        said += f"; {times:.2f} times its training time"
    if ahead := head_start(chain):
        said += f". Round two began {ahead}, the control afresh: their steps are not equal"
    return said


def _rounds(chain: Chain) -> list[Artifact]:
    """Round two and its control, where both were made and are two trainings."""
    rounds = [made for stage in ("second_round", "control") if (made := chain.stages.get(stage)) and made.exists()]
    return rounds if len({made.key for made in rounds}) == 2 else []
