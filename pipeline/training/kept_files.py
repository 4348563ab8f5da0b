"""What lies in a training's folder while it runs: two checkpoints, and what the best epochs have left."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.training.checkpoint import load_state, save_state

logger = logging.getLogger(__name__)

CHECKPOINTS = ("last.ckpt", "previous.ckpt")
"""Two are kept, the later one first: where that is damaged, the other one serves."""
BEST = "best-"


class Checkpoints:
    def __init__(self, work: Path) -> None:
        self._work, self._paths = work, [work / name for name in CHECKPOINTS]

    def save(self, content: Mapping[str, Any]) -> None:
        """Write the last one; the one before becomes the previous one."""
        last, previous = self._paths
        if last.exists():
            os.replace(last, previous)
        save_state(last, content)

    def load(self, lost: Callable[[Mapping[str, Any]], Path | None]) -> dict[str, Any] | None:
        """The later whole one, of whose files none is `lost`, or None. Damaged ones are removed."""
        damaged = False
        for path in self._paths:
            if not path.exists():
                continue
            try:
                content = load_state(path)
                if file := lost(content):
                    raise ValueError(f"{file} is missing or damaged, and {path} needs it.")
            except ValueError as error:
                damaged = True
                logger.warning("%s Going on without it.", error)
                path.unlink()
                continue
            return content
        if damaged:
            logger.warning("no checkpoint in %s is whole: the training starts anew", self._work)
        return None

    def remove(self) -> None:
        for path in self._paths:
            path.unlink(missing_ok=True)


class BestEpochs:
    """A folder for each epoch that was the best so far, while a checkpoint may name it."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def folder(self, epoch: int) -> Path:
        return self._work / f"{BEST}{epoch:06d}"

    def write(self, epoch: int, fill: Callable[[Path], None]) -> dict[str, str]:
        """Let `fill` write what the epoch leaves; returns the sha256 of each file."""
        folder = self.folder(epoch)
        shutil.rmtree(folder, ignore_errors=True)  # of a killed run
        folder.mkdir()
        fill(folder)
        return {path.name: file_sha256(path) for path in sorted(folder.iterdir())}

    def lost(self, epoch: int, files: Mapping[str, str]) -> Path | None:
        """A file of the epoch that is not there as it was written."""
        for name, sha256 in files.items():
            path = self.folder(epoch) / name
            if not path.is_file() or file_sha256(path) != sha256:
                return path
        return None

    def publish(self, epoch: int, files: Mapping[str, str]) -> None:
        """Move the epoch's files into the training's folder, and drop all others."""
        for name in files:
            os.replace(self.folder(epoch) / name, self._work / name)
        self.drop(epoch, 0)

    def drop(self, epoch: int, most: int = len(CHECKPOINTS)) -> None:
        """Keep the latest folders up to this best epoch: two checkpoints name two of them at most."""
        folders = sorted(self._work.glob(f"{BEST}*"), reverse=True)
        known = [folder for folder in folders if folder <= self.folder(epoch)]
        for folder in {*folders} - {*known[:most]}:
            shutil.rmtree(folder)
