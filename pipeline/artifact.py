"""Input-addressed artefacts: `root/<stage>/<key>/`, immutable once there, published by one rename.

A key is the hash of everything that shapes a stage's result and of its upstream keys, so the whole chain is known
before anything runs and `exists` is one stat. The work directory `.<key>.work` beside it survives a crash.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock

from aoq.pipeline.digests import canonical_json, digest, file_sha256, known_sha256
from aoq.pipeline.inputs import BegunOn, ChangedInputError, Inputs, collected, take_in
from aoq.pipeline.manifest import MANIFEST, content_of, read_manifest, seal
from aoq.pipeline.reading import read_json
from aoq.pipeline.scratch import reclaim, scratch_beside, scratch_of, writing_in

INPUTS = ".inputs.json"
"""In a work directory: the content of what was read so far."""
UNITS = "shards"
"""In a work directory: finished units of a stage's work, needed until the manifest is written."""
PACKAGES = ("aoq", "torch", "numpy", "pyarrow", "faiss-cpu", "faiss-gpu", "scikit-learn", "luigi")


def write_atomically(path: Path, content: bytes) -> None:
    """The whole content or the old file, whatever happens meanwhile."""
    with scratch_beside(path, wait=True) as folder:
        temporary = folder / path.name
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


@dataclass(frozen=True)
class Artifact:
    """One stage's result for one set of ingredients; `upstream` are the artefacts it is computed from."""

    root: Path
    stage: str
    stage_version: int
    ingredients: Mapping[str, Any]
    upstream: tuple[Artifact, ...] = ()
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", digest(self.recipe))

    @property
    def recipe(self) -> dict[str, Any]:
        """What the key is the hash of."""
        return {
            "stage": self.stage,
            "stage_version": self.stage_version,
            "ingredients": self.ingredients,
            "upstream": [[artifact.stage, artifact.key] for artifact in self.upstream],
        }

    @property
    def path(self) -> Path:
        return self.root / self.stage / self.key

    @property
    def work(self) -> Path:
        return self.root / self.stage / f".{self.key}.work"

    @property
    def manifest_path(self) -> Path:
        return self.path / MANIFEST

    def exists(self) -> bool:
        return self.manifest_path.exists()

    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path)

    def opened(self) -> Path:
        """The folder, to read from: every file in it is as the manifest says.

        Files are hashed once a process, and again where they changed since. A build that is under way has read them.

        Raises:
            ValueError: names the file that is not as it was published.
        """
        take_in(f"{self.stage}/{self.key}", self._whole)
        return self.path

    def _whole(self) -> str:
        if damaged := self._damaged_files():
            raise ValueError(f"{damaged[0]}; delete {self.path} and run again: then it is remade.")
        if strays := self._stray_files():
            raise ValueError(f"{strays[0]} and run again.")
        return content_of(self.manifest())

    @contextmanager
    def building(self) -> Iterator[Build | None]:
        """Yield the build under the artefact's lock, or None if there is nothing to build any more.

        That is where another process has published it meanwhile, or was killed when the manifest was written: what it
        had finished is published. Leaving the block without an exception publishes; otherwise the work directory stays
        for the next run.
        """
        with self._readable_os_errors():
            try:
                self.work.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:  # a file is in the way, or /proc
                raise PermissionError(errno.EACCES, "no folder can be made", error.filename) from error
            with FileLock(self.work.with_name(f".{self.key}.lock")):
                if self.exists():
                    yield None
                    return
                self.work.mkdir(exist_ok=True)
                build = Build(self.work)
                for left in [*self.work.rglob(".*.work")]:  # of a run that was killed while it wrote a file
                    reclaim(left)
                if build.is_finished():
                    self._publish()
                    yield None
                    return
                try:
                    build.recall_inputs()
                    with collected(build.inputs):
                        yield build
                    build.write_manifest(self)
                except ChangedInputError:
                    build.clear()  # it may rest on the other bytes
                    self.work.rmdir()
                    raise
                self._publish()

    def _publish(self) -> None:
        (self.work / INPUTS).unlink(missing_ok=True)
        if (units := self.work / UNITS).exists():
            shutil.rmtree(units)
        os.rename(self.work, self.path)
        _sync_directory(self.path.parent)

    @contextmanager
    def _readable_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = Path(error.filename or self.work)
            if not (place.is_relative_to(self.root) or self.root.is_relative_to(place)):  # a file of the data, say
                raise
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                remedy = "choose a writable one: [paths] artifact_root in luigi.cfg, or --artifact-root"
            elif error.errno in (errno.ENOSPC, errno.EDQUOT) or str(error).endswith(" written"):  # so numpy says it
                remedy = "free some space (`aoq gc` lists what nothing needs), then run again: finished work is kept"
            else:
                raise
            said = f"cannot write below {self.root}: {error.strerror or error} at {place}; {remedy}"
            raise OSError(error.errno or errno.ENOSPC, said) from error

    def link(self, alias: Path) -> None:
        """Point the readable `alias` at this artefact, replacing what it pointed at."""
        target = os.path.relpath(self.path, alias.parent)
        if alias.is_symlink() and os.readlink(alias) == target:
            if (left := scratch_of(alias)).exists():  # of a run that was killed once the link was there
                reclaim(left)
            return
        with writing_in(alias.parent):
            alias.parent.mkdir(parents=True, exist_ok=True)
        with scratch_beside(alias, wait=True) as folder:
            temporary = folder / alias.name
            temporary.symlink_to(target)
            os.replace(temporary, alias)

    def changed_files(self) -> list[str]:
        """One sentence for each file that is not what the manifest recorded."""
        return self._damaged_files() + self._stray_files()

    def _damaged_files(self) -> list[str]:
        sentences = []
        for name, entry in self.manifest()["files"].items():
            file = self.path / name
            if not file.is_file():
                sentences.append(f"{file} is missing")
            elif file.stat().st_size != entry["bytes"] or known_sha256(file) != entry["sha256"]:
                sentences.append(f"{file} was changed after it was published")
        return sentences

    def _stray_files(self) -> list[str]:
        there = {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()}
        strays = sorted(there - {*self.manifest()["files"], MANIFEST})
        return [f"{self.path / name} is not in the manifest; delete that file" for name in strays]


@dataclass
class Build:
    """A work directory being filled, and what the manifest will say besides the files' hashes."""

    directory: Path
    notes: dict[str, Any] = field(default_factory=dict)
    tool_version: str = field(default_factory=lambda: _versions().get("aoq", "unknown"))
    inputs: Inputs = field(init=False)
    _started: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    _clock: float = field(default_factory=time.monotonic)
    """The other clock may be set while it runs."""

    def __post_init__(self) -> None:
        self.inputs = Inputs(self._keep_inputs)

    def recall_inputs(self) -> None:
        """What an interrupted run read must be what this one reads."""
        if (file := self.directory / INPUTS).exists():
            try:
                self.inputs.begun_on = read_json(file, BegunOn)["inputs"]
            except ValueError as error:
                raise ChangedInputError(f"{error} The interrupted work is deleted; run again.") from None

    def _keep_inputs(self, content: Mapping[str, str]) -> None:
        write_atomically(self.directory / INPUTS, canonical_json({"inputs": content}).encode())

    def write_manifest(self, artifact: Artifact) -> None:
        """Write what the result is and what it was computed from.

        Raises:
            ChangedInputError: for an input that is no longer as it was when it was opened.
        """
        self.inputs.check_again()
        upstream = {f"{made.stage}/{made.key}": file_sha256(made.manifest_path) for made in artifact.upstream}
        manifest = {
            "stage": artifact.stage,
            "key": artifact.key,
            "recipe": artifact.recipe,
            "upstream_manifests": upstream,
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
        _sync_directory(self.directory)

    def is_finished(self) -> bool:
        """Whether the manifest is written, and the files are those that it names."""
        try:
            said, files = read_manifest(self.directory)["files"], self._files()
        except (ValueError, OSError):
            return False
        return said.keys() == files.keys() and all(known_sha256(files[name]) == said[name]["sha256"] for name in said)

    def _files(self) -> dict[str, Path]:
        """What is published beside the manifest."""
        found = {path.relative_to(self.directory): path for path in sorted(self.directory.rglob("*")) if path.is_file()}
        return {str(name): path for name, path in found.items() if name.parts[0] not in (MANIFEST, INPUTS, UNITS)}

    def clear(self) -> None:
        """Forget what an interrupted run left, and last what it read: a kill meanwhile leaves nothing to go on with."""
        self.inputs.begun_on.clear()
        for path in sorted(self.directory.iterdir(), key=lambda path: path.name == INPUTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _git_commit() -> str | None:
    """The commit of the source tree, with `+` where the tree differs from it; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        if (root / ".git").exists():  # else it is installed, maybe below somebody's own repository
            return subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip() or None
    return None
