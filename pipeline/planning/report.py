"""Planning a report: the chain of every run that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.planning.chain import Chain, Member, split_member
from aoq.pipeline.planning.planner import plan

VERSION = 1
SEPARATOR = ";"


@dataclass(frozen=True)
class PlannedReport:
    """Experiments, each with an override after `@` if need be, and the page about them."""

    members: tuple[Member, ...]
    artifact: Artifact

    @property
    def named(self) -> tuple[tuple[str, Chain], ...]:
        """The chains by the names of their runs."""
        return tuple((member.run, member.chain) for member in self.members)


def plan_report(runs: str, *, data_root: Path, artifact_root: Path) -> PlannedReport:
    """`runs` as they are typed: "demo; demo@seed=1"."""
    asked = tuple(filter(None, map(str.strip, runs.split(SEPARATOR))))
    if not asked:
        raise ValueError('a report is about runs; name some: "demo; demo@seed=1"')
    if len(set(asked)) < len(asked):
        raise ValueError(f"a run stands twice among {list(asked)}; name each once.")
    members = []
    for name in asked:
        experiment, override = split_member(name)
        chain = plan(experiment, override=override, data_root=data_root, artifact_root=artifact_root)
        if "evaluation" not in chain.stages:
            raise ValueError(f"{name!r} makes a table and trains nothing, so it has no results; name a student.")
        members.append(Member(name, chain, "evaluation"))
    evaluations = tuple(member.artifact for member in members)
    ingredients = {"runs": [member.run for member in members]}
    return PlannedReport(tuple(members), Artifact(artifact_root, "report", VERSION, ingredients, evaluations))
