"""Files that a resumed training goes on from: two checkpoints, and those of the best epochs."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from aoq.pipeline.digests import file_sha256
from aoq.pipeline.training.checkpoint import load_state, save_state

logger = logging.getLogger(__name__)

CHECKPOINTS = ("last.ckpt", "previous.ckpt")
"""Two checkpoints, the later one first: if it is damaged, the other is used."""
BEST = "best-"


class Checkpoints:
    def __init__(self, folder: Path) -> None:
        self._folder, self._paths = folder, [folder / name for name in CHECKPOINTS]

    def save(self, content: Mapping[str, Any]) -> None:
        """Write the last checkpoint; the one before becomes the previous one."""
        last, previous = self._paths
        self._folder.mkdir(exist_ok=True)
        if last.exists():
            os.replace(last, previous)
        save_state(last, content)

    def load(self, lost: Callable[[Mapping[str, Any]], Path | None]) -> dict[str, Any] | None:
        """Load the latest whole checkpoint with no `lost` file, or None; remove damaged ones."""
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
            logger.warning("no checkpoint in %s is whole: the training starts anew", self._folder)
        return None


def take_over(work: Path, folder: Path) -> None:
    """Move the files of a training that aoq 0.2.0 began, which lie in its work directory itself."""
    for left in [*(work / name for name in CHECKPOINTS), *work.glob(f"{BEST}*")]:
        if left.exists():
            folder.mkdir(exist_ok=True)
            os.replace(left, folder / left.name)


class BestEpochs:
    """A folder for each epoch that was the best so far, while a checkpoint may name it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self, epoch: int) -> Path:
        return self._folder / f"{BEST}{epoch:06d}"

    def write(self, epoch: int, fill: Callable[[Path], None]) -> dict[str, str]:
        """Let `fill` write the epoch's files; return the sha256 of each."""
        folder = self.folder(epoch)
        shutil.rmtree(folder, ignore_errors=True)  # of a killed run
        folder.mkdir(parents=True)
        fill(folder)
        return {path.name: file_sha256(path) for path in sorted(folder.iterdir())}

    def lost(self, epoch: int, files: Mapping[str, str]) -> Path | None:
        """Return a file of the epoch that is missing or was changed."""
        for name, sha256 in files.items():
            path = self.folder(epoch) / name
            if not path.is_file() or file_sha256(path) != sha256:
                return path
        return None

    def hand_over(self, epoch: int, files: Iterable[str], work: Path) -> None:
        """Put the epoch's files into another folder of this file system, and keep them here."""
        for name in files:
            (work / name).unlink(missing_ok=True)  # of a killed run
            try:
                os.link(self.folder(epoch) / name, work / name)
            except OSError:  # a file system without hard links
                shutil.copyfile(self.folder(epoch) / name, work / name)

    def drop(self, epoch: int, most: int = len(CHECKPOINTS)) -> None:
        """Keep the latest folders up to this best epoch: two checkpoints name two of them at most."""
        folders = sorted(self._folder.glob(f"{BEST}*"), reverse=True)
        known = [folder for folder in folders if folder <= self.folder(epoch)]
        for folder in {*folders} - {*known[:most]}:
            shutil.rmtree(folder)
