"""Work on images for a cluster: every node reads the same images and opens the same weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
from jaxtyping import Int
from torch import nn

from aoq.pipeline.on_ray import Job, Opened
from aoq.pipeline.prepare.sources.listing import Images
from aoq.pipeline.search.store import Folder

SAMPLE = 16
"""Images that every node reads before the run starts."""
ROOM = 1_000_000_000
"""Approximate bytes of a process besides the weights: libraries, a batch in transit, and a block's results."""


@dataclass(frozen=True)
class Sample:
    """Some images, and the sha256 of each; empty for an unreadable one."""

    images: Images
    sha256: tuple[str, ...]

    @classmethod
    def of(cls, images: Images, rows: Int[np.ndarray, " images"]) -> Sample:
        places = np.unique(np.linspace(0, len(rows) - 1, SAMPLE, dtype=np.int64))
        part = images.part(rows[places])
        return cls(part, tuple(_sha256(part, row) for row in range(len(places))))

    def differing_here(self) -> list[str]:
        """Name the first image whose content is different on this node."""
        wrong = [row for row, known in enumerate(self.sha256) if _sha256(self.images, row) != known]
        return [f"does not read {self.images.describe(wrong[0])} as it is here"] if wrong else []


def _sha256(images: Images, row: int) -> str:
    try:
        return sha256(images.read(row)).hexdigest()
    except (OSError, ValueError):
        return ""


def images_job(
    store: Folder, module: nn.Module, device: str, sample: Sample, open_there: Callable[[], Opened]
) -> Job[Opened]:
    """Make a job of units that need memory for the module, on nodes that read the sample as it is here.

    `open_there` is called in this directory, where relative paths start; it raises ValueError if anything differs.
    """
    opened = partial(_open_in, Path.cwd(), open_there)
    memory = ROOM + sum(part.nbytes for part in module.state_dict().values())
    return Job(store, memory, device, opened, partial(_lacking, opened, sample))


def _open_in(directory: Path, open_there: Callable[[], Opened]) -> Opened:
    with suppress(OSError):  # a node without the directory has a different sample
        os.chdir(directory)
    return open_there()


def _lacking(opened: Callable[[], object], sample: Sample) -> list[str]:
    try:
        opened()
    except (OSError, ValueError, ImportError) as error:
        return [f"cannot open what it needs ({error})"]
    return sample.differing_here()
