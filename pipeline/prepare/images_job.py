"""Work on images for a cluster: every node reads them where this machine does, and opens the same weights."""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Int
from torch import nn
from typing_extensions import override

from aoq.pipeline.prepare.sources.listing import Images
from aoq.pipeline.search.cluster.job import PACKAGES, Job, Opened

SAMPLE = 16
"""Images that every node reads before the run starts."""
ROOM = 1_000_000_000
"""Approximate bytes of a process beside the weights: libraries, a batch in transit, and a block's results."""
LIBRARIES = ("pillow", "torchvision", "timm", "transformers", "open-clip-torch", "sentence-transformers")


@dataclass(frozen=True)
class Sample:
    """Some images, and the sha256 of each; None for an unreadable one."""

    images: Images
    sha256: tuple[str, ...]

    @classmethod
    def of(cls, images: Images, rows: Int[np.ndarray, " images"]) -> Sample:
        places = np.unique(np.linspace(0, len(rows) - 1, SAMPLE, dtype=np.int64))
        part = images.part(rows[places])
        return cls(part, tuple(_sha256(part, row) for row in range(len(places))))

    def differing_here(self) -> list[str]:
        """Name the first image that this node does not read alike."""
        wrong = [row for row, known in enumerate(self.sha256) if _sha256(self.images, row) != known]
        return [f"does not read {self.images.describe(wrong[0])} as it is here"] if wrong else []


def _sha256(images: Images, row: int) -> str:
    try:
        return sha256(images.read(row)).hexdigest()
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True, kw_only=True)
class ImagesJob(Job[Opened]):
    """Input of units besides the images that they name."""

    packages: ClassVar[tuple[str, ...]] = (*PACKAGES, *LIBRARIES)
    sample: Sample = field(compare=False)
    directory: Path = field(default_factory=Path.cwd)
    """Start of relative paths."""

    @abstractmethod
    def open_there(self) -> Opened:
        """Do the work of `open` in the directory; raise ValueError if anything differs from here."""

    @override
    def open(self) -> Opened:
        with suppress(OSError):  # a node without the directory has a different sample
            os.chdir(self.directory)
        return self.open_there()

    @override
    def lacking(self) -> list[str]:
        try:
            self.open()
        except (OSError, ValueError, ImportError) as error:
            return [f"cannot open what it is to work with ({error})"]
        return self.sample.differing_here()


def bytes_of_room(module: nn.Module) -> int:
    """Approximate bytes of a process that holds the module."""
    return ROOM + sum(part.nbytes for part in module.state_dict().values())
