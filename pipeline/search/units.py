"""A mining job as units of work: each reads the embeddings and the files of earlier units, and writes its own."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.search.problem import Problem

logger = logging.getLogger(__name__)

GROUP_ROWS = 2**16

Job = TypeVar("Job")


@dataclass(frozen=True)
class Unit(Generic[Job]):
    """`run(job, work)` gives the tables of `outputs`; whoever runs it, and how often, the files are the same."""

    outputs: tuple[str, ...]
    run: Callable[[Job, Path], Sequence[pa.Table]]

    def is_done(self, work: Path) -> bool:
        return all(_is_sound(work / f"{name}.parquet") for name in self.outputs)

    def do(self, job: Job, work: Path) -> None:
        """Write what is not there whole already."""
        if self.is_done(work):
            return
        for name, table in zip(self.outputs, self.run(job, work), strict=True):
            temporary = work / f"{name}.tmp-{platform.node()}-{os.getpid()}"
            pq.write_table(
                table,
                temporary,
                compression="none",  # they do not live long
                use_dictionary=False,
                write_page_checksum=True,
                row_group_size=GROUP_ROWS,
            )
            os.replace(temporary, work / f"{name}.parquet")


def unit_name(kind: str, start: int, stop: int) -> str:
    """Of what concerns the rows from `start` to before `stop`; names sort as rows do."""
    return f"{kind}-{start:09d}-{stop:09d}"


Steps = Sequence[Sequence[Unit[Problem]]]
"""The units of one step need those of the steps before it, but not each other."""


def _is_sound(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                file.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        logger.warning("%s is damaged (%s); mining it again", path, error)
        return False
    return True
