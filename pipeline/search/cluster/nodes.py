"""Before a run starts: can every node of the cluster work on it?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from aoq.pipeline.search.cluster.connection import usable_nodes
from aoq.pipeline.search.cluster.job import Job, problems_here

SECONDS = 600.0
"""Within which a node must have read all vectors."""


def check_nodes(ray: Any, job: Job, cpus: int) -> None:
    """Raise if a node that could be given a unit has other versions or does not see the same files."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    token = f"token-{uuid4().hex}"
    (job.work / token).write_text(token)
    task = ray.remote(num_cpus=0, max_retries=0)(problems_here)
    try:
        asked = {
            name: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(job, token)
            for node, name in usable_nodes(ray, cpus, job.memory).items()
        }
        answers = {name: _answer(ray, answer) for name, answer in asked.items()}
    finally:
        for path in job.work.glob(f"{token}*"):
            path.unlink(missing_ok=True)
    if unfit := [f"{name} {'; it '.join(phrases)}" for name, phrases in answers.items() if phrases]:
        raise ValueError(
            f"{len(unfit)} of {len(answers)} nodes cannot work on this: node {'. Node '.join(unfit)}. Mend or stop "
            "these nodes; all need one environment and one shared folder."
        )


def _answer(ray: Any, answer: Any) -> Sequence[str]:
    try:
        return list(ray.get(answer, timeout=SECONDS))
    except ray.exceptions.GetTimeoutError:
        return [f"did not answer within {SECONDS:.0f} seconds"]
    except ray.exceptions.RayError as error:
        return [f"cannot run aoq ({str(error).strip().splitlines()[-1]})"]
