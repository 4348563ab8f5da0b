"""Work for a cluster, and checks that its nodes see the same files and have the same programs."""

from __future__ import annotations

import hashlib
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

import aoq
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.search.cluster.connection import Room, usable_nodes
from aoq.pipeline.search.store import Folder

PACKAGES = ("aoq", "numpy", "pyarrow", "numba", "torch", "faiss-cpu", "faiss-gpu")
"""Packages that shape a table."""

CODE = ("models", "pipeline")
SECONDS = 600.0
"""Time limit for a node to check everything that it reads."""

Versions = tuple[tuple[str, str], ...]
Opened = TypeVar("Opened")


@cache
def versions_here(packages: tuple[str, ...] = PACKAGES) -> Versions:
    """Collect the versions of Python, of packages that shape a result, and of aoq's own code: checkouts may differ."""
    found = {"python": platform.python_version()}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return (*sorted(found.items()), ("aoq's code", code_sha256(Path(aoq.__file__).parent)[:12]))


def code_sha256(package: Path) -> str:
    """Hash the names and contents of all modules that can shape a result, in the copy of aoq at `package`."""
    code = hashlib.sha256()
    for folder in CODE:
        for path in sorted((package / folder).rglob("*.py")):
            code.update(f"{path.relative_to(package)}\0{file_sha256(path)}\n".encode())
    return code.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Job(ABC, Generic[Opened]):
    """A job as it travels to nodes: files and numbers. Its units write their tables into a shared folder."""

    packages: ClassVar[tuple[str, ...]] = PACKAGES
    """Packages whose versions must be the same everywhere."""
    store: Folder
    versions: Versions
    memory: int
    """Bytes that a unit may take for itself."""
    gpus: int = 0

    @property
    def work(self) -> Path:
        return self.store.path

    def differing_here(self) -> list[str]:
        """List the versions that differ on this node, one phrase each."""
        return differing_versions(versions_here(self.packages), self.versions)

    @abstractmethod
    def open(self) -> Opened:
        """Load the job's data; called on a node, once per process."""

    @abstractmethod
    def lacking(self) -> list[str]:
        """List what this node lacks for the job, one phrase each."""


def differing_versions(here: Versions, wanted: Versions) -> list[str]:
    """Describe each version that differs from the wanted one, one phrase each.

    >>> differing_versions((("numpy", "2.0"),), (("numpy", "2.1"), ("torch", "2.9")))
    ['has numpy 2.0, not 2.1', 'has torch nothing, not 2.9']
    """
    ours, theirs = dict(here), dict(wanted)
    return [
        f"has {name} {ours.get(name, 'nothing')}, not {theirs.get(name, 'nothing')}"
        for name in dict.fromkeys((*theirs, *ours))
        if ours.get(name) != theirs.get(name)
    ]


def check_nodes(ray: Any, job: Job[Any], room: Room) -> None:
    """Raise if a node that could run a unit has other versions or does not see the same files."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, num_gpus=room.gpus, max_retries=0)(problems_here)
    with token_in(job.work) as token:
        asked = {
            name: task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(job, token)
            for node, name in usable_nodes(ray, room).items()
        }
        answers = {name: answer_of(ray, answer) for name, answer in asked.items()}
    refuse_unfit(answers)


def refuse_unfit(answers: Mapping[str, Sequence[str]]) -> None:
    """Raise if a node cannot work; `answers` are the problems of each, by its name."""
    if unfit := [f"{name} {'; it '.join(phrases)}" for name, phrases in answers.items() if phrases]:
        raise ValueError(
            f"{len(unfit)} of {len(answers)} nodes cannot work on this: node {'. Node '.join(unfit)}. Repair or stop "
            "these nodes; all need one environment and one shared folder."
        )


def answer_of(ray: Any, answer: Any) -> Sequence[str]:
    """Problems that a node found; or that it gave no answer."""
    try:
        return list(ray.get(answer, timeout=SECONDS))
    except ray.exceptions.GetTimeoutError:
        return [f"did not answer within {SECONDS:.0f} seconds"]
    except ray.exceptions.RayError as error:
        return [f"cannot run aoq ({str(error).strip().splitlines()[-1]})"]


def problems_here(job: Job[Any], token: str) -> list[str]:
    """List what keeps this node from working on the job; `token` is a file in the work folder."""
    return job.differing_here() + unshared(job.work, token) + job.lacking()


@contextmanager
def token_in(folder: Path) -> Iterator[str]:
    """Leave a file for all nodes to find; yield its name."""
    token = f"token-{uuid4().hex}"
    (folder / token).write_text(token)
    try:
        yield token
    finally:
        for path in folder.glob(f"{token}*"):
            path.unlink(missing_ok=True)


def unshared(folder: Path, token: str) -> list[str]:
    """Describe, if so, that this node does not see the folder, or cannot write there."""
    try:
        (folder / f"{token}-{uuid4().hex}").write_text((folder / token).read_text())
    except OSError as error:
        return [
            f"cannot read and write in {folder} ({error.strerror}): that folder must be one that all nodes share, "
            "at the same path"
        ]
    return []
