"""What is open to browse: the training split with the tables on it, and evaluations with their queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.artifact import digest
from aoq.pipeline.browse.lists import ListFile
from aoq.pipeline.browse.search import CaptionSearch
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.thumbnails import Thumbnails
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.search.problem import Direction


@dataclass(frozen=True)
class Album:
    """A split with its pictures, and its captions to search."""

    key: str
    split: Split
    pictures: Thumbnails
    texts: CaptionSearch

    @classmethod
    def of(cls, folder: Path, split: Split) -> Album:
        # Named after the folder too: browsers keep pictures, and another data set's may come from the same port.
        key = f"{split.name}-{digest([str(folder), split.ids])[:8]}"
        return cls(key, split, Thumbnails(folder, split), CaptionSearch(split.captions))


@dataclass(frozen=True)
class OpenTable:
    """A negative table, with the view of it that the runs' screen made, if it did."""

    runs: tuple[str, ...]
    """Those that train on it as this view sees it."""
    manifest: Mapping[str, Any]
    lists: Mapping[Direction, ListFile]
    rules: tuple[str, ...]
    """Of the view."""
    store: EmbeddingStore | None

    @property
    def name(self) -> str:
        return self.runs[0]

    @property
    def teacher(self) -> str:
        """Whose scores they are."""
        said = self.manifest.get("teacher") or {}
        return ", ".join(str(said[part]) for part in ("experiment", "model") if said.get(part))


@dataclass(frozen=True)
class Evaluated:
    """A run's answers to the queries of its evaluation split."""

    name: str
    album: Album
    metrics: Mapping[str, Any]
    similarity: Float32[np.ndarray, "images captions"]
    """Mapped."""


@dataclass(frozen=True)
class Source:
    """What is open; all tables are of one training split."""

    train: Album | None
    tables: tuple[OpenTable, ...]
    evaluations: tuple[Evaluated, ...]

    @property
    def albums(self) -> dict[str, Album]:
        return {album.key: album for album in (self.train, *(run.album for run in self.evaluations)) if album}
