"""A mining job for a cluster, and whether its nodes can work on it: they must see its files, with the same programs."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import uuid4

import aoq
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.reading import open_array
from aoq.pipeline.search.cluster.connection import usable_nodes
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.remote import fetch
from aoq.pipeline.search.store import Folder

PACKAGES = ("aoq", "numpy", "pyarrow", "numba", "torch", "faiss-cpu", "faiss-gpu")

POSITIVES = "positives.npy"
CODE = ("models", "pipeline")
SECONDS = 600.0
"""Within which a node must have read all vectors."""

Versions = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class VectorsFile:
    """A .npy file that all nodes see at one path; or, where there is a `uri`, that each fetches for itself."""

    path: Path
    uri: str
    sha256: str

    def here(self) -> Path:
        return fetch(self.uri, self.path.parent) if self.uri else self.path


@dataclass(frozen=True)
class Job:
    """A problem in files and numbers; its positives stand in the work folder."""

    images: VectorsFile
    captions: VectorsFile
    store: Folder
    positives_sha256: str
    h_captions: int
    h_images: int
    memory: int
    one_set: bool
    versions: Versions

    @property
    def work(self) -> Path:
        return self.store.path

    def open(self) -> Problem:
        images = open_array(self.images.here(), "c")
        captions = images if self.one_set else open_array(self.captions.here(), "c")
        path = self.work / POSITIVES
        if file_sha256(path) != self.positives_sha256:
            raise ValueError(f"{path} was damaged after it was written; run again.")
        positives = open_array(path)
        depths = self.h_captions, self.h_images
        return Problem(images, captions, positives, *depths, self.memory, self.one_set)


@cache
def versions_here() -> Versions:
    """Say the versions of Python, of the packages that shape a table, and of aoq's own code: checkouts may differ."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return (*sorted(found.items()), ("aoq's code", code_sha256(Path(aoq.__file__).parent)[:12]))


def code_sha256(package: Path) -> str:
    """Hash the names and contents of all modules that can shape a table, in the copy of aoq at `package`."""
    code = hashlib.sha256()
    for folder in CODE:
        for path in sorted((package / folder).rglob("*.py")):
            code.update(f"{path.relative_to(package)}\0{file_sha256(path)}\n".encode())
    return code.hexdigest()


def differing_versions(here: Versions, wanted: Versions) -> list[str]:
    """One phrase for each that is not as wanted.

    >>> differing_versions((("numpy", "2.0"),), (("numpy", "2.1"), ("torch", "2.9")))
    ['has numpy 2.0, not 2.1', 'has torch nothing, not 2.9']
    """
    ours, theirs = dict(here), dict(wanted)
    return [
        f"has {name} {ours.get(name, 'nothing')}, not {theirs.get(name, 'nothing')}"
        for name in dict.fromkeys((*theirs, *ours))
        if ours.get(name) != theirs.get(name)
    ]


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
            f"{len(unfit)} of {len(answers)} nodes cannot work on this: node {'. Node '.join(unfit)}. Repair or stop "
            "these nodes; all need one environment and one shared folder."
        )


def _answer(ray: Any, answer: Any) -> Sequence[str]:
    try:
        return list(ray.get(answer, timeout=SECONDS))
    except ray.exceptions.GetTimeoutError:
        return [f"did not answer within {SECONDS:.0f} seconds"]
    except ray.exceptions.RayError as error:
        return [f"cannot run aoq ({str(error).strip().splitlines()[-1]})"]


def problems_here(job: Job, token: str) -> list[str]:
    """What keeps this node from working on the job, a phrase each; `token` is a file in the work folder."""
    problems = differing_versions(versions_here(), job.versions)
    try:
        (job.work / f"{token}-{uuid4().hex}").write_text((job.work / token).read_text())
    except OSError as error:
        problems.append(
            f"cannot read and write in {job.work} ({error.strerror}): that folder must be one that all nodes share, "
            "at the same path"
        )
    for side in (job.images, job.captions):
        given = side.uri or str(side.path)
        try:
            found = file_sha256(side.here())
        except (OSError, ValueError) as error:
            problems.append(f"cannot read {given} ({error})")
        else:
            if found != side.sha256:
                problems.append(f"reads another {given} (sha256 {found[:12]}, not {side.sha256[:12]})")
    return problems
