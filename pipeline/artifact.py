"""Input-addressed artefacts: `root/<stage>/<key>/`, immutable once there, published by one rename.

A key is the hash of everything that shapes a stage's result and of its upstream keys, so the whole chain is known
before anything runs and `exists` is one stat. The work directory `.<key>.work` next to it survives a crash.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from aoq.pipeline import files
from aoq.pipeline.build import (
    INPUTS,
    MANIFEST_FILE,
    SAMPLED,
    UNITS,
    Build,
    ChangedInputError,
    content_digest,
    read_artifact_manifest,
    take_in,
)


@dataclass(frozen=True)
class Artifact:
    """One stage's result for one set of ingredients, computed from the `upstream` artefacts."""

    root: Path
    stage: str
    stage_version: int
    ingredients: Mapping[str, Any]
    upstream: tuple[Artifact, ...] = ()
    """Artefacts whose keys are part of this one's."""
    reads: tuple[Artifact, ...] = ()
    """Further artefacts that the stage reads; they follow from those upstream."""
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", files.digest(self.recipe))

    @property
    def recipe(self) -> dict[str, Any]:
        """The content whose hash is the key."""
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
        return self.path / MANIFEST_FILE

    def exists(self) -> bool:
        return self.manifest_path.exists()

    def manifest(self) -> dict[str, Any]:
        return read_artifact_manifest(self.path)

    def opened(self) -> Path:
        """Return the folder for reading; refuse files that differ from the published ones.

        Files are hashed once per process, and again if they changed since. A build in progress records them as inputs.
        """
        take_in(f"{self.stage}/{self.key}", self._intact_content)
        return self.path

    def _intact_content(self) -> str:
        for change in self._changed_files():
            raise ValueError(f"{change}; delete {self.path} and run again to remake it, or restore that file.")
        return content_digest(self.manifest())

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each changed file, and for each input that is missing or was replaced."""
        try:
            yield from self._changed_files()
            yield from (f"made from {one.stage}/{one.key}, which is gone" for one in self.upstream if not one.exists())
            inputs: dict[str, str] = self.manifest().get("inputs", {})
            data: dict[str, str] = {}
            for name, content in inputs.items():
                if (self.root / name / MANIFEST_FILE).exists():
                    manifest = read_artifact_manifest(self.root / name)
                    read, theirs = manifest.get("folder_sha256", {}), manifest.get("inputs", {})
                    data |= {one: read[file] for one in theirs if (file := one.rpartition("/")[2]) in read}
                    if content_digest(manifest) != content:
                        yield f"made from another version of {name} than the current one"
            for name, content in inputs.items():
                if name.startswith("data/") and content.removeprefix(SAMPLED) != data.get(name, content):
                    yield f"made from another {name.rpartition('/')[2]} than the dataset's"
        except ValueError as error:  # a damaged manifest: its own, or that of an input
            yield str(error)

    def _changed_files(self) -> Iterator[str]:
        known = self.manifest()["files"]
        for name, entry in known.items():
            file = self.path / name
            if not file.is_file():
                yield f"{file} is missing"
            elif file.stat().st_size != entry["bytes"] or files.known_sha256(file) != entry["sha256"]:
                yield f"{file} was changed after it was published"
        there = {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()}
        yield from (f"{self.path / name} is not in the manifest" for name in sorted(there - {*known, MANIFEST_FILE}))

    @contextmanager
    def building(self) -> Iterator[Build | None]:
        """Yield the build under the artefact's lock, or None if nothing is left to build.

        Nothing is left if another process has published it, or was killed after it wrote the manifest: then its work
        is published here. Leaving the block without an exception publishes; otherwise the work directory stays for the
        next run.
        """
        with self._readable_os_errors():
            try:
                self.work.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:  # a file is in the way, or /proc
                raise PermissionError(errno.EACCES, "a folder cannot be created", error.filename) from error
            with FileLock(self.work.with_name(f".{self.key}.lock")):
                if self.exists():
                    yield None
                    return
                if self.path.is_dir():  # without a manifest: `aoq gc` was killed while it deleted the artefact
                    shutil.rmtree(self.path)
                self.work.mkdir(exist_ok=True)
                build = Build(self.work)
                for left in [*self.work.rglob(".*.work")]:  # from a run that was killed while it wrote a file
                    files.reclaim(left)
                if build.is_finished():
                    self._publish()
                    yield None
                    return
                try:
                    with build.collecting():
                        yield build
                except ChangedInputError:
                    build.clear()  # it may be computed from the other bytes
                    self.work.rmdir()
                    raise
                upstream = {f"{one.stage}/{one.key}": files.file_sha256(one.manifest_path) for one in self.upstream}
                identity = {"stage": self.stage, "key": self.key, "recipe": self.recipe}
                build.write_manifest({**identity, "upstream_manifests": upstream})
                self._publish()

    def _publish(self) -> None:
        (self.work / INPUTS).unlink(missing_ok=True)
        if (units := self.work / UNITS).exists():
            shutil.rmtree(units)
        os.rename(self.work, self.path)
        files.sync_directory(self.path.parent)

    @contextmanager
    def _readable_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = Path(error.filename or self.work)
            if not (place.is_relative_to(self.root) or self.root.is_relative_to(place)):  # such as a data file
                raise
            if error.errno in (*files.FORBIDDEN, *files.NO_LOCKS):
                able = "writable one" if error.errno in files.FORBIDDEN else "file system that locks files"
                remedy = f"choose a {able}: [paths] artifact_root in luigi.cfg, or --artifact-root"
            elif error.errno in (errno.ENOSPC, errno.EDQUOT) or str(error).endswith(" written"):  # numpy's words
                remedy = "free some space (`aoq gc` lists unused artefacts), then run again: finished work is kept"
            else:
                raise
            reason = f"cannot write below {self.root}: {error.strerror or error} at {place}; {remedy}"
            raise OSError(error.errno or errno.ENOSPC, reason) from error

    def link(self, alias: Path) -> None:
        """Point the readable `alias` at this artefact, replacing any earlier link."""
        target = os.path.relpath(self.root.resolve() / self.stage / self.key, alias.parent.resolve())
        if alias.is_symlink() and os.readlink(alias) == target:
            if (left := files.scratch_folder(alias)).exists():  # left by a run that was killed after making the link
                files.reclaim(left)
            return
        with files.writing_in(alias.parent):
            alias.parent.mkdir(parents=True, exist_ok=True)
        with files.scratch_beside(alias, wait=True) as folder:
            temporary = folder / alias.name
            temporary.symlink_to(target)
            os.replace(temporary, alias)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the places in which two recipes differ, each with both values."""
    ours, theirs = _recipe_leaves(one), _recipe_leaves(other)
    both = {place: (ours.get(place, "nothing"), theirs.get(place, "nothing")) for place in sorted({*ours, *theirs})}
    return {place: values for place, values in both.items() if values[0] != values[1]}


def _recipe_leaves(value: Any, place: str = "") -> dict[str, Any]:
    """Flatten a recipe.

    >>> _recipe_leaves({"ingredients": {"epochs": 2}, "upstream": [["second_round", "3f"], ["second_round", "8a"]]})
    {'ingredients.epochs': 2, 'upstream.second_round': '3f', 'upstream.second_round 2': '8a'}
    """
    leaves: dict[str, Any] = {}
    if place == "upstream":
        for stage, key in value:
            times = 1 + sum(name.split()[0] == f"upstream.{stage}" for name in leaves)
            leaves[f"upstream.{stage}" + (f" {times}" if times > 1 else "")] = key
        return leaves
    if not isinstance(value, Mapping):
        return {place: value}
    for name, item in value.items():
        leaves |= _recipe_leaves(item, f"{place}.{name}".strip("."))
    return leaves
