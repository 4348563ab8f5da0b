"""A search for a cluster: vectors in files that all nodes see or fetch; positives in the work folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from typing_extensions import override

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.reading import open_array
from aoq.pipeline.search.cluster.job import Job, versions_here
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.remote import fetch
from aoq.pipeline.search.store import Folder

POSITIVES = "positives.npy"


@dataclass(frozen=True)
class VectorsFile:
    """A .npy file that all nodes see at one path, or that each node fetches if there is a `uri`."""

    path: Path
    uri: str
    sha256: str

    def here(self) -> Path:
        return fetch(self.uri, self.path.parent) if self.uri else self.path


@dataclass(frozen=True, kw_only=True)
class SearchJob(Job[Problem]):
    """A search problem in files and numbers; its positives lie in the work folder."""

    images: VectorsFile
    captions: VectorsFile
    positives_sha256: str
    h_captions: int
    h_images: int
    one_set: bool
    device: str

    @override
    def open(self) -> Problem:
        images = open_array(self.images.here(), "c")
        captions = images if self.one_set else open_array(self.captions.here(), "c")
        path = self.work / POSITIVES
        if file_sha256(path) != self.positives_sha256:
            raise ValueError(f"{path} was damaged after it was written; run again.")
        positives = open_array(path)
        depths = self.h_captions, self.h_images
        return Problem(images, captions, positives, *depths, self.memory, self.one_set, self.device)

    @override
    def lacking(self) -> list[str]:
        problems = []
        for side in (self.images, self.captions):
            given = side.uri or str(side.path)
            try:
                found = file_sha256(side.here())
            except (OSError, ValueError) as error:
                problems.append(f"cannot read {given} ({error})")
            else:
                if found != side.sha256:
                    problems.append(f"reads another {given} (sha256 {found[:12]}, not {side.sha256[:12]})")
        return problems


def ship_problem(problem: Problem, store: Folder, *, fetched: Mapping[Path, str]) -> SearchJob:
    """Turn a problem of mapped vectors into files; its positives are written into the work folder."""
    return SearchJob(
        store=store,
        versions=versions_here(),
        memory=problem.memory,
        images=_file_of(problem.images, fetched),
        captions=_file_of(problem.captions, fetched),
        positives_sha256=write_positives(problem, store),
        h_captions=problem.h_captions,
        h_images=problem.h_images,
        one_set=problem.one_set,
        device=problem.device,
    )


def write_positives(problem: Problem, store: Folder) -> str:
    """Write the positives into the work folder, and return their hash."""
    temporary, positives = store.path / "positives.tmp", store.path / POSITIVES
    with temporary.open("wb") as file:
        np.save(file, problem.positives)
    os.replace(temporary, positives)
    return file_sha256(positives)


def source_of(vectors: np.ndarray) -> np.memmap:
    """Require that the vectors are one whole file, and return its map."""
    if not isinstance(vectors, np.memmap) or isinstance(vectors.base, np.memmap):
        raise ValueError("vectors for Ray must each be one whole memory-mapped .npy file, for all nodes to read.")
    return vectors


def _file_of(vectors: np.ndarray, fetched: Mapping[Path, str]) -> VectorsFile:
    path = Path(str(source_of(vectors).filename))
    return VectorsFile(path, fetched.get(path, ""), file_sha256(path))
