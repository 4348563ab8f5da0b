"""Data open to browsing: the training split with its tables, and evaluations with their queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.browse.lists import ListFile
from aoq.pipeline.browse.search import CaptionSearch
from aoq.pipeline.browse.survey import Survey, merge_suspects, survey
from aoq.pipeline.config.overrides import split_member
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.thumbnails import Thumbnails
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.digests import digest
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.evaluation.retrieval import open_similarity
from aoq.pipeline.planning.chain import Chain, check_same_data, run_name, same_queries, table_owner
from aoq.pipeline.planning.opening import open_checked
from aoq.pipeline.produce.data import open_train_split
from aoq.pipeline.search.problem import DIRECTIONS, OTHER, Direction
from aoq.pipeline.tables.files import read_manifest
from aoq.pipeline.tables.inspection import inspect_list
from aoq.pipeline.tables.screens.view import read_view_manifest

NamedChain = tuple[str, Chain]


@dataclass(frozen=True)
class Album:
    """A split with its pictures and a search of its captions."""

    key: str
    split: Split
    pictures: Thumbnails
    texts: CaptionSearch

    @classmethod
    def of(cls, folder: Path, split: Split) -> Album:
        # The name includes the folder: browsers cache pictures, and another data set may be served from the same port.
        key = f"{split.name}-{digest([str(folder), split.ids])[:8]}"
        return cls(key, split, Thumbnails(folder, split), CaptionSearch(split.captions))


@dataclass(frozen=True)
class OpenTable:
    """A negative table, with the view by the runs' screen if there is one."""

    runs: tuple[str, ...]
    """Runs that train on it under this view."""
    teacher: str
    """Model whose scores they are."""
    lists: Mapping[Direction, ListFile]
    rules: tuple[str, ...]
    """Rules of the view."""
    store: EmbeddingStore | None

    @property
    def name(self) -> str:
        return self.runs[0]

    @cached_property
    def surveys(self) -> dict[Direction, Survey]:
        """Made when a page first asks: every list is read."""
        return {one: survey(self.lists[one], len(self.lists[OTHER[one]])) for one in DIRECTIONS}

    @cached_property
    def suspects(self) -> np.ndarray:
        """Pairs to look at, the most suspected first."""
        return merge_suspects(list(self.surveys.values()))


@dataclass(frozen=True)
class Evaluated:
    """A run's answers to the queries of its evaluation split; the similarities stay on disk."""

    name: str
    album: Album
    metrics: Mapping[str, Any]
    similarity: Float32[np.ndarray, "images captions"]


@dataclass(frozen=True)
class Source:
    """Everything that is open; all tables belong to one training split."""

    train: Album | None
    tables: tuple[OpenTable, ...]
    evaluations: tuple[Evaluated, ...]


def open_source(asked: Sequence[NamedChain]) -> Source:
    """Open the existing artefacts of experiments, named with their overrides; refuse data that do not go together."""
    listed, evaluated = [], []
    for named, chain in asked:
        experiment, override = split_member(named)
        run, owner = (run_name(experiment, override), chain), table_owner(chain)
        has_table, is_evaluated = owner and _made(owner, "hard_negatives"), _made(chain, "evaluation")
        if not (has_table or is_evaluated):
            command = f"run {quote(named)} --round hard_negatives" if owner else f"evaluate {quote(named)}"
            raise ValueError(f"{named} has neither a table nor an evaluation yet; run: aoq {command}")
        if has_table:
            listed.append(run)
        if is_evaluated:
            evaluated.append(run)
    return Source(*_open_tables(listed), _open_evaluations(evaluated))


def _made(chain: Chain, stage: str) -> Artifact | None:
    made = chain.stages.get(stage)
    return made if made and made.exists() else None


def _open_tables(runs: Sequence[NamedChain]) -> tuple[Album | None, tuple[OpenTable, ...]]:
    if not runs:
        return None, ()
    owner = runs[0][1].owner("hard_negatives")
    users: dict[str, list[NamedChain]] = {}
    for name, chain in runs:
        check_same_data(name, owner, chain)
        screen = _made(chain, "screen")
        users.setdefault(chain["hard_negatives"].key + (screen.key if screen else ""), []).append((name, chain))
    train = Album.of(owner.folder, open_train_split(owner))
    tables = tuple(_open_table([name for name, _ in each], each[0][1], train.split) for each in users.values())
    # Warm up once: compiling and importing takes seconds, too long for a page.
    tokenise("it's")
    inspect_list(tables[0].lists["i2t"][0], train.split, np.empty(0, np.int64), tables[0].store)
    return train, tables


def _open_table(names: Sequence[str], chain: Chain, split: Split) -> OpenTable:
    """Open the table that the runs of these names share."""
    owner = chain.owner("hard_negatives")
    folder = owner["hard_negatives"].opened() / "table"
    screen, embeddings = _made(chain, "screen"), _made(owner, "embeddings")
    view = screen.opened() / "view" if screen else None
    store = EmbeddingStore.open(embeddings.opened()) if embeddings else None
    return open_table(names, folder, split, view, store)


def open_table(
    names: Sequence[str], folder: Path, split: Split, view: Path | None = None, store: EmbeddingStore | None = None
) -> OpenTable:
    """The table in a folder, whose rows are those of the split.

    Raises:
        ValueError: for a table of other sizes.
    """
    manifest = read_manifest(folder)
    asked = read_view_manifest(view, manifest)["screen"] if view else ()
    lists = {direction: ListFile(folder, direction, manifest, view) for direction in DIRECTIONS}
    if (len(lists["i2t"]), len(lists["t2i"])) != (split.image_count, split.caption_count):
        raise ValueError(
            f"{folder} is of {len(lists['i2t'])} images and {len(lists['t2i'])} captions, and split {split.name!r} has "
            f"{split.image_count} and {split.caption_count}; mine again."
        )
    said = manifest.get("teacher") or {}
    teacher = ", ".join(str(said[part]) for part in ("experiment", "model") if said.get(part))
    return OpenTable(tuple(names), teacher, lists, tuple(rule for rule in RULES if rule in asked), store)


def _open_evaluations(runs: Sequence[NamedChain]) -> tuple[Evaluated, ...]:
    """Open the evaluations; runs with the same queries share an album."""
    opened: list[tuple[Chain, Evaluated]] = []
    for name, chain in runs:
        album = next((there.album for other, there in opened if same_queries(other, chain)), None)
        album = album or Album.of(chain.folder, open_checked(chain, chain.experiment.evaluation.split))
        made = chain["evaluation"]
        file, expected = made.opened() / "similarity.npy", (album.split.image_count, album.split.caption_count)
        similarity = open_similarity(file, *expected)
        opened.append((chain, Evaluated(name, album, made.manifest().get("metrics", {}), similarity)))
    return tuple(evaluated for _, evaluated in opened)
