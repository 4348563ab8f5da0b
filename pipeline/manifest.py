"""Manifest of an artefact: its recipe, its files' hashes, its upstream artefacts and inputs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from typing_extensions import NotRequired, TypedDict

from aoq.pipeline.digests import digest
from aoq.pipeline.reading import parse_json, reading

MANIFEST = "MANIFEST.json"


class File(TypedDict):
    bytes: int
    sha256: str


class Recipe(TypedDict):
    stage: str
    stage_version: int
    ingredients: dict[str, Any]
    upstream: list[list[str]]
    """Stages and keys."""


class Manifest(TypedDict):
    stage: str
    key: str
    recipe: Recipe
    upstream_manifests: dict[str, str]
    files: dict[str, File]
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


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of an artefact's folder or work directory; refuse a damaged or foreign one."""
    path = folder / MANIFEST
    with reading(path, "an artefact's manifest", f"delete {folder} and run again to remake it"):
        manifest: Mapping[str, Any] = parse_json(path.read_bytes(), Manifest)
        if "seal" in manifest and manifest["seal"] != seal(manifest):
            raise ValueError("it was changed after it was written")
        if not manifest["key"] == digest(manifest["recipe"]) == folder.name.removeprefix(".").removesuffix(".work"):
            raise ValueError(f"it is that of {manifest['key']!r}")
        datetime.strptime(manifest["finished"], "%Y-%m-%dT%H:%M:%SZ")
        if any(len(made) != 2 for made in manifest["recipe"]["upstream"]):
            raise ValueError("recipe.upstream: a stage and its key are needed")
        for name, entry in manifest["files"].items():
            place = PurePosixPath(name)
            if place.is_absolute() or ".." in place.parts or not 0 <= entry["bytes"] < 2**63:
                raise ValueError(f"files.{name!r}: it lies outside the folder, or its size is impossible")
        return dict(manifest)


def seal(manifest: Mapping[str, Any]) -> str:
    """Hash everything else in the manifest."""
    return digest({name: value for name, value in manifest.items() if name != "seal"})


def content_of(manifest: Mapping[str, Any]) -> str:
    """Hash the artefact's files, independently of when and where they were made."""
    return digest({name: entry["sha256"] for name, entry in manifest["files"].items()})
