"""Verdict on round two: its gain over its control, on dev, and its cost, in a sentence."""

from __future__ import annotations

import numpy as np

from aoq.pipeline.evaluation.ranks import DEV_RANKS, read_ranks
from aoq.pipeline.evaluation.significance import compare_runs, verdict
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.planning.opening import open_checked
from aoq.pipeline.training.metrics import read_metrics, training_seconds


def gain_on_control(chain: Chain) -> str | None:
    """Describe round two's gain over the control; None unless both exist, are two trainings, and have ranks."""
    rounds = [made for stage in ("second_round", "control") if (made := chain.stages.get(stage)) and made.exists()]
    if len({made.key for made in rounds}) < 2 or not all(DEV_RANKS in made.manifest()["files"] for made in rounds):
        return None
    split = open_checked(chain, chain.experiment.dataset.dev)
    sizes = {"images": split.image_count, "captions": split.caption_count}
    ours, theirs = (read_ranks(made.opened() / DEV_RANKS, **sizes) for made in rounds)
    name = "round two" if chain.experiment.co_teaching is None else "co-taught"
    found = compare_runs(ours, theirs, split.image_of, rng=np.random.default_rng(0))
    said = verdict(found, f"{name} - control", images=split.image_count)
    seconds, control = (training_seconds(read_metrics(made.opened() / "metrics.jsonl")) for made in rounds)
    return f"{said}; {seconds / control:.2f} times its training time" if control else said
