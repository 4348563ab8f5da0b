"""A build: the inputs that it reads, its work directory, and its manifest."""

from __future__ import annotations

import json
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

from typing_extensions import NotRequired, TypedDict

from aoq.pipeline.files import canonical_json, digest, file_sha256, known_sha256, sync_directory, write_atomically
from aoq.pipeline.reading import parse_json, read_json, reading

Check = Callable[[], str]
"""Returns the current content of an input; raises ValueError if it differs from the recorded content."""

MANIFEST_FILE = "MANIFEST.json"
INPUTS = ".inputs.json"
"""File in a work directory with the content of every input read so far."""
UNITS = "shards"
"""Folder in a work directory with finished parts, for a resumed run; deleted when the artefact is published."""
SAMPLED = "sampled:"
"""Prefix of an array's hash if only blocks of the array were compared."""
TIME = "%Y-%m-%dT%H:%M:%SZ"
_COMPUTING = ("aoq", "luigi", "torch", "numpy", "pyarrow", "numba", "faiss-cpu", "faiss-gpu", "scikit-learn")
PACKAGES = (*_COMPUTING, "pillow", "torchvision", "timm", "transformers", "open-clip-torch", "sentence-transformers")


class ChangedInputError(ValueError):
    """Unfinished work was begun on inputs that have changed since."""


@dataclass
class Build:
    """A work directory being filled, and the manifest's content besides the files' hashes."""

    directory: Path
    notes: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, str] = field(default_factory=dict)
    """Content of every input by name."""
    _begun_on: dict[str, str] = field(default_factory=dict)
    """Inputs of all runs on the unfinished work."""
    _checks: dict[str, Check] = field(default_factory=dict)
    _started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    _clock: float = field(default_factory=time.monotonic)
    """Start for durations; the wall clock may be changed in between."""

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Record everything opened inside the block; it must equal the inputs of an interrupted run.

        Raises:
            ChangedInputError: if an input differs from the interrupted run's, or changed inside the block.
        """
        self.recall_inputs()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)
        for name, check in self._checks.items():
            try:
                current = check()
            except ValueError as error:  # an OSError does not mean that the content changed
                raise ChangedInputError(f"while it was read: {error}") from None
            if current != self.inputs[name]:
                raise ChangedInputError(f"{name} was changed while it was read; run again.")

    def recall_inputs(self) -> None:
        """Read the inputs on which the unfinished work was begun."""
        if (file := self.directory / INPUTS).exists():
            try:
                self._begun_on = read_json(file, _BegunOn)["inputs"]
            except ValueError as error:
                raise ChangedInputError(f"{error} The interrupted work is deleted; run again.") from None

    def add_input(self, name: str, content: str, check: Check) -> None:
        """Record an input; a full check replaces one by blocks."""
        if name not in self._begun_on:
            self._begun_on[name] = content
            write_atomically(self.directory / INPUTS, canonical_json({"inputs": self._begun_on}).encode())
        if self._begun_on[name].removeprefix(SAMPLED) != content.removeprefix(SAMPLED):
            raise ChangedInputError(f"the interrupted work was begun on another {name}; it is deleted: run again.")
        if name not in self.inputs or not content.startswith(SAMPLED):
            self.inputs[name], self._checks[name] = content, check

    def write_manifest(self, identity: Mapping[str, Any]) -> None:
        """Write the manifest: the artefact's identity, its inputs and its files."""
        manifest = {
            **identity,
            "inputs": self.inputs,
            "files": {
                name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
                for name, path in self._files().items()
            },
            "started": self._started.strftime(TIME),
            "finished": datetime.now(timezone.utc).strftime(TIME),
            "seconds": round(time.monotonic() - self._clock, 3),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "host": platform.node(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "packages": _versions(),
            "git": _git_commit(),
            **self.notes,
        }
        content = json.dumps(manifest | {"seal": seal(manifest)}, indent=1, ensure_ascii=False) + "\n"
        write_atomically(self.directory / MANIFEST_FILE, content.encode())
        sync_directory(self.directory)

    def is_finished(self) -> bool:
        """Return whether the manifest is written and the files are those it names."""
        try:
            hashes = {name: entry["sha256"] for name, entry in read_artifact_manifest(self.directory)["files"].items()}
            return hashes == {name: known_sha256(path) for name, path in self._files().items()}
        except (ValueError, OSError):
            return False

    def _files(self) -> dict[str, Path]:
        """List the files published with the manifest."""
        paths = {path.relative_to(self.directory): path for path in sorted(self.directory.rglob("*")) if path.is_file()}
        return {str(name): path for name, path in paths.items() if name.parts[0] not in (MANIFEST_FILE, INPUTS, UNITS)}

    def clear(self) -> None:
        """Delete an interrupted run's files, its inputs last: a kill in between leaves nothing to resume from."""
        self._begun_on.clear()
        for path in sorted(self.directory.iterdir(), key=lambda path: path.name == INPUTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


class _BegunOn(TypedDict):
    inputs: dict[str, str]


_current: ContextVar[Build | None] = ContextVar("the build under way", default=None)


def take_in(name: str, check: Check) -> None:
    """Check an input before it is read, and record it with the build in progress, if any."""
    content, build = check(), _current.get()
    if build is not None:
        build.add_input(name, content, check)


def take_in_planned(
    name: str,
    planned: str,
    current: Check,
    subject: object,
    remedy: str = "was changed after the run was planned; run again.",
) -> None:
    """Take in an input that a key depends on; refuse the `subject` if its content changed since."""

    def check() -> str:
        if current() != planned:
            raise ValueError(f"{subject} {remedy}")
        return planned

    take_in(name, check)


def planned_file(folder: Path, name: str, sha256: str) -> Path:
    """Return a user's file that a key depends on; refuse it if it changed since."""
    take_in_planned(f"data/{name}", sha256, partial(known_sha256, folder / name), folder / name)
    return folder / name


class _File(TypedDict):
    bytes: int
    sha256: str


class _Recipe(TypedDict):
    stage: str
    stage_version: int
    ingredients: dict[str, Any]
    upstream: list[list[str]]
    """Stages and keys."""


class _Manifest(TypedDict):
    stage: str
    key: str
    recipe: _Recipe
    upstream_manifests: dict[str, str]
    files: dict[str, _File]
    finished: str
    seconds: float
    inputs: NotRequired[dict[str, str]]
    """Content of every input; older manifests lack it and the seal."""
    seal: NotRequired[str]
    metrics: NotRequired[dict[str, float]]
    member_metrics: NotRequired[list[dict[str, float]]]
    fingerprint: NotRequired[dict[str, str]]
    folder_sha256: NotRequired[dict[str, str]]
    vocabulary_size: NotRequired[int]
    feature_size: NotRequired[int]


def read_artifact_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an artefact's folder or work directory; refuse a damaged or foreign one."""
    path = folder / MANIFEST_FILE
    with reading(path, "an artefact's manifest", f"delete {folder} and run again to remake it"):
        manifest = parse_json(path.read_bytes(), _Manifest)
        if "seal" in manifest and manifest["seal"] != seal(manifest):
            raise ValueError("it was changed after it was written")
        if not manifest["key"] == digest(manifest["recipe"]) == folder.name.removeprefix(".").removesuffix(".work"):
            raise ValueError(f"it belongs to {manifest['key']!r}")
        datetime.strptime(manifest["finished"], TIME)
        if any(len(pair) != 2 for pair in manifest["recipe"]["upstream"]):
            raise ValueError("recipe.upstream: a stage and its key are needed")
        for name, entry in manifest["files"].items():
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or not 0 <= entry["bytes"] < 2**63:
                raise ValueError(f"files.{name!r}: it lies outside the folder, or its size is impossible")
        return dict(manifest)


def seal(manifest: Mapping[str, Any]) -> str:
    """Hash everything else in the manifest."""
    return digest({name: value for name, value in manifest.items() if name != "seal"})


def content_digest(manifest: Mapping[str, Any]) -> str:
    """Hash the artefact's files, independently of when and where they were made."""
    return digest({name: entry["sha256"] for name, entry in manifest["files"].items()})


@cache
def code_versions() -> Mapping[str, str]:
    """Return the versions of Python, of the packages that compute, and of our own code, as checkouts may differ."""
    code = code_sha256(Path(__file__).parents[1])
    return {"python": platform.python_version(), **_versions(), "aoq's code": code[:12]}


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def code_sha256(root: Path) -> str:
    """Hash the names and contents of all modules that can shape a result."""
    content = sha256()
    for folder in ("models", "pipeline"):
        for path in sorted((root / folder).rglob("*.py")):
            content.update(f"{path.relative_to(root)}\0{file_sha256(path)}\n".encode())
    return content.hexdigest()


def _git_commit() -> str | None:
    """Return the commit of the source tree, with `+` if the tree differs from it; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        if (root / ".git").exists():  # else it is installed, perhaps inside another repository
            return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip() or None
    return None
