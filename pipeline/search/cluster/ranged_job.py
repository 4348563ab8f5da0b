"""A search for a cluster whose units read their vectors by range: from an object store, or from files all nodes see."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.reading import open_array
from aoq.pipeline.search.cluster.job import Job, versions_here
from aoq.pipeline.search.cluster.search_job import POSITIVES, source_of, write_positives
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.ranges import RangedVectors, piece_hashes
from aoq.pipeline.search.store import Folder


@dataclass(frozen=True)
class RangedFile:
    """A matrix in a file, and where the hashes of its pieces lie in the work folder."""

    address: str
    offset: int
    shape: tuple[int, int]
    hashes: str
    hashes_sha256: str

    def open(self, work: Path) -> RangedVectors:
        hashes = (work / self.hashes).read_bytes()
        if sha256(hashes).hexdigest() != self.hashes_sha256:
            raise ValueError(f"{work / self.hashes} was damaged after it was written; run again.")
        return RangedVectors(self.address, self.offset, self.shape, hashes)

    def lacking(self, work: Path) -> list[str]:
        """Read the first and the last piece; the others are checked when they are read."""
        try:
            vectors = self.open(work)
            for row in (0, len(vectors) - 1):
                vectors[row : row + 1]
        except (OSError, ValueError) as error:
            return [f"cannot read {self.address} as it is here ({str(error).rstrip('.')})"]
        return []


@dataclass(frozen=True, kw_only=True)
class RangedSearchJob(Job[Problem]):
    """A search problem of vectors that no node copies. Its table depends on no library that multiplies."""

    packages: ClassVar[tuple[str, ...]] = ("aoq", "numpy", "pyarrow", "numba")
    images: RangedFile
    captions: RangedFile
    norms: tuple[float, float]
    positives_sha256: str
    h_captions: int
    h_images: int
    one_set: bool

    @override
    def open(self) -> Problem:
        # Units of the search that streams ask for rows alone, which is all that these vectors can give.
        images: Any = self.images.open(self.work)
        captions: Any = images if self.one_set else self.captions.open(self.work)
        path = self.work / POSITIVES
        if file_sha256(path) != self.positives_sha256:
            raise ValueError(f"{path} was damaged after it was written; run again.")
        depths = self.h_captions, self.h_images
        problem = Problem(images, captions, open_array(path), *depths, self.memory, self.one_set)
        vars(problem)["norms"] = self.norms  # known already: it takes all vectors to find them
        return problem

    @override
    def lacking(self) -> list[str]:
        return [phrase for side in dict.fromkeys((self.images, self.captions)) for phrase in side.lacking(self.work)]


def ship_by_range(problem: Problem, store: Folder, *, fetched: Mapping[Path, str]) -> RangedSearchJob:
    """Turn a problem of mapped vectors into addresses and hashes; `fetched` names the addresses of cached files."""
    images = _ranged(problem.images, "images", store, fetched)
    captions = images if problem.one_set else _ranged(problem.captions, "captions", store, fetched)
    return RangedSearchJob(
        store=store,
        versions=versions_here(RangedSearchJob.packages),
        memory=problem.memory,
        images=images,
        captions=captions,
        norms=problem.norms,
        positives_sha256=write_positives(problem, store),
        h_captions=problem.h_captions,
        h_images=problem.h_images,
        one_set=problem.one_set,
    )


def _ranged(vectors: np.ndarray, side: str, store: Folder, fetched: Mapping[Path, str]) -> RangedFile:
    source, hashes = source_of(vectors), piece_hashes(vectors)
    temporary, name = store.path / f"{side}.hashes.tmp", f"{side}.hashes"
    temporary.write_bytes(hashes)
    os.replace(temporary, store.path / name)
    address = fetched.get(Path(str(source.filename))) or Path(str(source.filename)).as_uri()
    rows, dimensions = vectors.shape
    return RangedFile(address, source.offset, (rows, dimensions), name, sha256(hashes).hexdigest())
