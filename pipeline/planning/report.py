"""Which runs a report is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.planning.chain import Chain, run_name, split_member
from aoq.pipeline.planning.stages import plan

VERSION = 1
SEPARATOR = ";"


@dataclass(frozen=True)
class ReportPlan:
    """Experiments, each with an override after `@` if need be, and the page about them."""

    asked: tuple[str, ...]
    named: tuple[tuple[str, Chain], ...]
    artifact: Artifact


def plan_report(runs: str, *, data_root: Path, artifact_root: Path) -> ReportPlan:
    """`runs` as they are typed: "demo; demo@seed=1"."""
    asked = tuple(filter(None, map(str.strip, runs.split(SEPARATOR))))
    if not asked:
        raise ValueError('a report is about runs; name some: "demo; demo@seed=1"')
    if len(set(asked)) < len(asked):
        raise ValueError(f"a run stands twice among {list(asked)}; name each once.")
    chains = []
    for name in asked:
        experiment, override = split_member(name)
        chain = plan(experiment, override=override, data_root=data_root, artifact_root=artifact_root)
        if "evaluation" not in chain.stages:
            raise ValueError(f"{name!r} makes a table and trains nothing, so it has no results; name a student.")
        chains.append(chain)
    names = tuple(run_name(*split_member(name)) for name in asked)
    evaluations = tuple(chain["evaluation"] for chain in chains)
    artifact = Artifact(artifact_root, "report", VERSION, {"runs": list(names)}, evaluations)
    return ReportPlan(asked, tuple(zip(names, chains, strict=True)), artifact)
