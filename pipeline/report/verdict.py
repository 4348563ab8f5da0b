"""Gains of runs over their baselines: the verdict that opens the page, and the one of `aoq results` on round two."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.data.folder import Split
from aoq.pipeline.evaluation.retrieval import Ranks
from aoq.pipeline.evaluation.significance import Interval, compare_runs, rsum_intervals, verdict
from aoq.pipeline.report.collect import SEED, ReportedRun, has_ranks, pair_seeds, read_dev_ranks
from aoq.pipeline.stages.chain import Chain, same_queries
from aoq.pipeline.stages.splits import evaluated_ranks, open_checked, open_evaluated
from aoq.pipeline.training.metrics import read_metrics, training_seconds

GainParts = Mapping[str, tuple[str, Artifact]]
"""By part of a student's method: the override that trains with that part alone, and the training's artefact."""
SHORTEST = 20.0
"""Seconds below which the duration of a training means nothing."""


def verdicts(runs: Sequence[ReportedRun], parts: Mapping[str, GainParts] = {}) -> list[dict[str, Any]]:
    """Judge each run that has a baseline, and its gain's `parts`; several seeds of a run together, without parts."""
    judgements, judged = [], set[str]()
    for run in runs:
        if run.gain is not None and run.name not in judged:
            pairs = pair_seeds(run, runs)
            judged |= {one.name for one, _ in pairs}
            judgements.append(_judge_gain(pairs, parts))
    return judgements


def _judge_gain(pairs: Sequence[tuple[ReportedRun, ReportedRun]], parts: Mapping[str, GainParts]) -> dict[str, Any]:
    """Judge a run and its baseline, or several seeds of both by their mean and, for three or more, an interval."""
    run, other = pairs[0]
    gains = [one.gain for one, _ in pairs if one.gain]
    interval: Interval | None
    interval, chance, label, baseline = gains[0].interval, gains[0].chance, run.label, other.label
    if len(pairs) > 1:
        ours, theirs = ([one.scored.ranks for one in side if one.scored] for side in zip(*pairs, strict=True))
        rng = np.random.default_rng(SEED)
        interval = rsum_intervals({"ours": ours}, theirs, run.split.image_of, rng=rng).get("ours")
        chance = ""  # p belongs to one seed
        seed = r"@seed=\d+\b(?!,)|(?<![.\w])seed=\d+,|,seed=\d+"
        label, baseline = (re.sub(seed, "", name) for name in (label, baseline))
    if lead := head_start(run.chain):
        label += f" (started {lead})"
    low, high = interval or (0.0, 0.0)
    times = [factor for one, _ in pairs if (factor := time_to_control(one.chain))]
    return {
        "label": label,
        "comparison": "is better than" if low > 0 else "is worse than" if high < 0 else "is not distinguishable from",
        "baseline": baseline,
        "difference": float(np.mean([gain.difference for gain in gains])),
        "interval": interval,
        "chance": chance,
        "seeds": len(pairs),
        "split": run.split,
        "times": float(np.mean(times)) if times else None,
        "parts": gains_apart(run.chain, parts.get(run.name, {})).values() if len(pairs) == 1 else (),
    }


def on_dev(runs: Sequence[ReportedRun]) -> list[tuple[ReportedRun, str]]:
    """Return the gains on dev of runs whose controls are trained but not evaluated."""
    waiting = [run for run in runs if run.gain is None and run.chain.is_taught]
    return [(run, gain) for run in waiting if (gain := gain_on_control(run.chain))]


def time_to_control(chain: Chain) -> float | None:
    """Divide round two's training time by the control's; None if one is missing or too short.

    None also if the control has the steps of several rounds, of which the chain names the last.
    """
    experiment, rounds = chain.experiment, _two_rounds(chain)
    student = experiment.second_round
    if not rounds or (student is not None and student.control_continues and experiment.tuned_rounds > 1):
        return None
    ours, theirs = (training_seconds(read_metrics(one.opened() / "metrics.jsonl")) for one in rounds)
    return ours / theirs if min(ours, theirs) >= SHORTEST else None


def head_start(chain: Chain) -> str:
    """Describe the training that a fine-tuned student has had before; "" without one."""
    if (start := chain.start_of("second_round")) is None:
        return ""
    epochs = start.recipe["ingredients"].get("training", {}).get("epochs")
    return f"after {epochs} epochs elsewhere" if epochs else "from imported weights"


def gain_on_control(chain: Chain) -> str | None:
    """Compare round two with the control on dev; None unless both exist and have ranks."""
    rounds = _two_rounds(chain)
    if not rounds or not all(map(has_ranks, rounds)):
        return None
    line = _dev_verdict(chain, "round two" if chain.experiment.co_teaching is None else "co-taught", *rounds)
    shared, steps = chain.experiment.student.control, [one.manifest().get("steps", 0) for one in rounds]
    if isinstance(shared, float):
        line += f"; the control took {steps[1] / steps[0] / chain.experiment.tuned_rounds:.3g} times as many steps"
    elif shared == "items":
        line += "; the control encoded as many images and captions"
    if times := time_to_control(chain):
        line += f"; {times:.2f} times its training time"
    if (lead := head_start(chain)) and not chain.experiment.student.control_continues:
        if chain.experiment.student.start == "control":
            line += ". Round two started from the control's weights: their steps are not equal"
        else:
            line += f". Round two started {lead}, the control from scratch: their steps are not equal"
    return line


def evaluated_gain(chain: Chain, control: Chain) -> str | None:
    """Compare the evaluations of round two and of the control's run; None unless both exist, of the same queries."""
    if not (chain["evaluation"].exists() and control["evaluation"].exists() and same_queries(chain, control)):
        return None
    split, folds = open_evaluated(chain)[0], chain.experiment.evaluation.folds
    return _verdict("round two", split, evaluated_ranks(chain), evaluated_ranks(control), folds=folds)


def gains_apart(chain: Chain, parts: GainParts) -> dict[str, str]:
    """Compare each part of a student's gain with the control on dev, as far as both are trained."""
    trained = {part: one for part, (_, one) in parts.items() if has_ranks(chain["control"]) and has_ranks(one)}
    return {part: _dev_verdict(chain, part, one, chain["control"]) for part, one in trained.items()}


def _dev_verdict(chain: Chain, part: str, training: Artifact, control: Artifact) -> str:
    split = open_checked(chain, chain.experiment.dataset.dev)
    return _verdict(part, split, *(read_dev_ranks(one, split) for one in (training, control)))


def _verdict(part: str, split: Split, ours: Ranks, theirs: Ranks, *, folds: int = 1) -> str:
    comparison = compare_runs(ours, theirs, split.image_of, rng=np.random.default_rng(SEED))
    return verdict(comparison, f"{part} - control", images=split.image_count, split=split.name, folds=folds)


def _two_rounds(chain: Chain) -> list[Artifact]:
    """Return round two and its control if both exist as different trainings, else nothing."""
    rounds = [one for stage in ("second_round", "control") if (one := chain.made(stage))]
    return rounds if len({one.key for one in rounds}) == 2 else []
