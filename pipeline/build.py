"""Work directory of an artefact in the making, and the content of its manifest."""

from __future__ import annotations

import json
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from aoq.pipeline.digests import canonical_json, file_sha256, known_sha256
from aoq.pipeline.inputs import BegunOn, ChangedInputError, Inputs
from aoq.pipeline.manifest import MANIFEST, read_manifest, seal
from aoq.pipeline.reading import read_json
from aoq.pipeline.scratch import sync_directory, write_atomically

INPUTS = ".inputs.json"
"""File in a work directory with the content of every input read so far."""
UNITS = "shards"
"""Folder in a work directory with finished parts, for a resumed run; deleted when the artefact is published."""
COMPUTING = ("aoq", "luigi", "torch", "numpy", "pyarrow", "numba", "faiss-cpu", "faiss-gpu", "scikit-learn")
PACKAGES = (*COMPUTING, "pillow", "torchvision", "timm", "transformers", "open-clip-torch", "sentence-transformers")


@dataclass
class Build:
    """A work directory being filled, and the manifest's content besides the files' hashes."""

    directory: Path
    notes: dict[str, Any] = field(default_factory=dict)
    tool_version: str = field(default_factory=lambda: _versions().get("aoq", "unknown"))
    inputs: Inputs = field(init=False)
    _started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    _clock: float = field(default_factory=time.monotonic)
    """Start for durations; the wall clock may be changed in between."""

    def __post_init__(self) -> None:
        self.inputs = Inputs(self._keep_inputs)

    def recall_inputs(self) -> None:
        """Check that this run reads the same inputs as an interrupted one."""
        if (file := self.directory / INPUTS).exists():
            try:
                self.inputs.begun_on = read_json(file, BegunOn)["inputs"]
            except ValueError as error:
                raise ChangedInputError(f"{error} The interrupted work is deleted; run again.") from None

    def _keep_inputs(self, content: Mapping[str, str]) -> None:
        write_atomically(self.directory / INPUTS, canonical_json({"inputs": content}).encode())

    def write_manifest(self, identity: Mapping[str, Any]) -> None:
        """Write the manifest: the artefact's identity, its inputs and its files."""
        manifest = {
            **identity,
            "inputs": self.inputs.content,
            "files": {
                name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
                for name, path in self._files().items()
            },
            "started": f"{self._started:%Y-%m-%dT%H:%M:%SZ}",
            "finished": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
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
        write_atomically(self.directory / MANIFEST, content.encode())
        sync_directory(self.directory)

    def is_finished(self) -> bool:
        """Return whether the manifest is written and the files are those it names."""
        try:
            hashes = {name: entry["sha256"] for name, entry in read_manifest(self.directory)["files"].items()}
            return hashes == {name: known_sha256(path) for name, path in self._files().items()}
        except (ValueError, OSError):
            return False

    def _files(self) -> dict[str, Path]:
        """List the files published with the manifest."""
        found = {path.relative_to(self.directory): path for path in sorted(self.directory.rglob("*")) if path.is_file()}
        return {str(name): path for name, path in found.items() if name.parts[0] not in (MANIFEST, INPUTS, UNITS)}

    def clear(self) -> None:
        """Delete an interrupted run's files, its inputs last: a kill in between leaves nothing to resume from."""
        self.inputs.begun_on.clear()
        for path in sorted(self.directory.iterdir(), key=lambda path: path.name == INPUTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


@cache
def code_versions() -> Mapping[str, str]:
    """Return the versions of Python, of the packages that compute, and of our own code, as checkouts may differ."""
    code = code_sha256(Path(__file__).parents[1])
    return {"python": platform.python_version(), **_versions(), "aoq's code": code[:12]}


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
