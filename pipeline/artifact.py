"""Input-addressed artefacts: `root/<stage>/<key>/`, immutable once there, published by one rename.

A key is the hash of everything that shapes a stage's result and of its upstream keys, so the whole chain is known
before anything runs and `exists` is one stat. The work directory `.<key>.work` beside it survives a crash.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from filelock import FileLock

MANIFEST = "MANIFEST.json"
PACKAGES = ("aoq", "torch", "numpy", "pyarrow", "faiss-cpu", "faiss-gpu", "scikit-learn", "luigi")


def canonical_json(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest(content: Any) -> str:
    """Sixteen hex digits that name a JSON value whatever the order of its keys."""
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        hasher = hashlib.sha256()
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()


def write_atomically(path: Path, content: bytes) -> None:
    """The whole content or the old file, whatever happens meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
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
        try:
            return json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{self.manifest_path} is damaged ({error}); delete {self.path} and run again to remake it."
            ) from None

    @contextmanager
    def building(self) -> Iterator[Build | None]:
        """Yield the build under the artefact's lock, or None if another process has published it meanwhile.

        Leaving the block without an exception publishes; otherwise the work directory stays for the next run.
        """
        with self._readable_os_errors():
            self._make_folder()
            with FileLock(self.work.with_name(f".{self.key}.lock")):
                if self.exists():
                    yield None
                    return
                self.work.mkdir(exist_ok=True)
                build = Build(self.work)
                yield build
                build.write_manifest(self)
                os.rename(self.work, self.path)
                _sync_directory(self.path.parent)

    def _make_folder(self) -> None:
        try:
            self.work.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:  # a file is in the way, or /proc
            raise PermissionError(errno.EACCES, "no folder can be made", error.filename) from error

    @contextmanager
    def _readable_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                remedy = "choose a writable one: [paths] artifact_root in luigi.cfg, or --artifact-root"
            elif error.errno in (errno.ENOSPC, errno.EDQUOT, None):  # numpy's short writes carry no number
                remedy = "free some space (`aoq gc` lists what nothing needs), then run again: finished work is kept"
            else:
                raise
            reason, place = error.strerror or error, error.filename or self.work
            raise OSError(
                error.errno or errno.ENOSPC, f"cannot write below {self.root}: {reason} at {place}; {remedy}"
            ) from error

    def link(self, alias: Path) -> None:
        """Point the readable `alias` at this artefact, replacing what it pointed at."""
        target = os.path.relpath(self.path, alias.parent)
        if alias.is_symlink() and os.readlink(alias) == target:
            return
        alias.parent.mkdir(parents=True, exist_ok=True)
        temporary = alias.with_name(f".{alias.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, alias)

    def changed_files(self) -> list[str]:
        """One sentence for each file that is not what the manifest recorded."""
        sentences = []
        recorded = self.manifest()["files"]
        for name, entry in recorded.items():
            file = self.path / name
            if not file.is_file():
                sentences.append(f"{file} is missing")
            elif file.stat().st_size != entry["bytes"] or file_sha256(file) != entry["sha256"]:
                sentences.append(f"{file} was changed after it was published")
        extra = {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()}
        sentences += [f"{self.path / name} is not in the manifest" for name in sorted(extra - {*recorded, MANIFEST})]
        return sentences


class Build:
    """A work directory being filled, and what the manifest will say besides the files' hashes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.notes: dict[str, Any] = {}
        self.tool_version = _versions().get("aoq", "unknown")
        self._started = time.time()

    def write_manifest(self, artifact: Artifact) -> None:
        finished = time.time()
        files = {
            str(path.relative_to(self.directory)): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
            for path in sorted(self.directory.rglob("*"))
            if path.is_file() and path.name != MANIFEST
        }
        manifest = {
            "stage": artifact.stage,
            "key": artifact.key,
            "recipe": artifact.recipe,
            "upstream_manifests": {
                f"{upstream.stage}/{upstream.key}": file_sha256(upstream.manifest_path)
                for upstream in artifact.upstream
            },
            "files": files,
            "started": _iso(self._started),
            "finished": _iso(finished),
            "seconds": round(finished - self._started, 3),
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "host": platform.node(),
            "platform": platform.platform(),
            "python": platform.python_version(),
            "packages": _versions(),
            "git": _git_commit(),
            **self.notes,
        }
        content = json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"
        write_atomically(self.directory / MANIFEST, content.encode())
        _sync_directory(self.directory)

    def clear(self) -> None:
        """Forget what an interrupted run left, for stages that are not worth resuming."""
        for path in self.directory.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _git_commit() -> str | None:
    """The commit of the source tree, with `+` where the tree differs from it; None outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():  # installed, maybe below somebody's own repository
        return None
    try:
        described = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None
