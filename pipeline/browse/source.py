"""What the pages show: the training split with its tables, and evaluations with their queries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.browse.lists import ListFile, Survey, merge_suspects, survey
from aoq.pipeline.config.load import split_member
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.thumbnails import Thumbnails
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.evaluation.retrieval import open_similarity
from aoq.pipeline.files import digest
from aoq.pipeline.search.problem import DIRECTIONS, OPPOSITE, Direction
from aoq.pipeline.stages.chain import Chain, check_same_data, run_name, same_queries, table_owner
from aoq.pipeline.stages.splits import open_checked, open_train_split
from aoq.pipeline.tables.files import read_manifest
from aoq.pipeline.tables.inspection import inspect_list
from aoq.pipeline.tables.screens.view import read_view_manifest

NamedChain = tuple[str, Chain]
CACHED_SEARCHES = 8


class CaptionSearch:
    """Find captions with all words of a query, in any order and case, each at the start of a word.

    In scripts without spaces, and in emoji, a word may start anywhere.

    >>> CaptionSearch(["Two DOGS run", "a woman runs", "ein dog"]).rows("run dog")
    [0]
    """

    def __init__(self, captions: Sequence[str]) -> None:
        self._texts = [_folded(caption) for caption in captions]
        self.rows = lru_cache(CACHED_SEARCHES)(self._find)

    def _find(self, query: str) -> Sequence[int]:
        """Return the rows of the captions; none for an empty query."""
        words = set(_folded(query).split())
        rows: Sequence[int] = range(len(self._texts)) if words else ()
        for word in words:
            start = "" if unicodedata.east_asian_width(word[0]) in "WF" else r"(?<!\w)"
            matches = re.compile(start + re.escape(word)).search
            rows = [row for row in rows if word in self._texts[row] and matches(self._texts[row])]
        return rows


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


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
    """A negative table, and the view that the runs' screen makes of it, if any."""

    runs: tuple[str, ...]
    """Runs that train on it under this view."""
    teacher: str
    """Model that scored it."""
    lists: Mapping[Direction, ListFile]
    rules: tuple[str, ...]
    """Rules of the view."""
    store: EmbeddingStore | None

    @property
    def name(self) -> str:
        return self.runs[0]

    @cached_property
    def surveys(self) -> dict[Direction, Survey]:
        """Computed when a page first needs them, as every list is read."""
        return {one: survey(self.lists[one], len(self.lists[OPPOSITE[one]])) for one in DIRECTIONS}

    @cached_property
    def suspects(self) -> np.ndarray:
        """Suspected false negatives, the most suspected first."""
        return merge_suspects(list(self.surveys.values()))

    @property
    def suspected_pairs(self) -> list[tuple[int, int]]:
        """Suspects as rows (image, caption)."""
        return list(zip(self.suspects["image"].tolist(), self.suspects["caption"].tolist(), strict=True))


@dataclass(frozen=True)
class Evaluated:
    """A run's answers to the queries of its evaluation split; the similarities stay on disk."""

    name: str
    album: Album
    metrics: Mapping[str, Any]
    similarity: Float32[np.ndarray, "images captions"]


@dataclass(frozen=True)
class Gallery:
    """Everything the pages show; all tables belong to one training split."""

    train: Album | None
    tables: tuple[OpenTable, ...]
    evaluations: tuple[Evaluated, ...]


def open_runs(chains: Sequence[NamedChain]) -> Gallery:
    """Open the existing artefacts of experiments, named with their overrides; refuse data that do not go together."""
    listed, evaluated = [], []
    for named, chain in chains:
        run, owner = (run_name(*split_member(named)), chain), table_owner(chain)
        has_table, is_evaluated = owner and _existing(owner, "hard_negatives"), _existing(chain, "evaluation")
        if not (has_table or is_evaluated):
            command = f"run {quote(named)} --round hard_negatives" if owner else f"evaluate {quote(named)}"
            raise ValueError(f"{named} has neither a table nor an evaluation yet; run: aoq {command}")
        listed += [run] if has_table else []
        evaluated += [run] if is_evaluated else []
    return Gallery(*_open_tables(listed), _open_evaluations(evaluated))


def _existing(chain: Chain, stage: str) -> Artifact | None:
    artifact = chain.stages.get(stage)
    return artifact if artifact and artifact.exists() else None


def _open_tables(runs: Sequence[NamedChain]) -> tuple[Album | None, tuple[OpenTable, ...]]:
    if not runs:
        return None, ()
    owner = runs[0][1].owner("hard_negatives")
    train = Album.of(owner.folder, open_train_split(owner))
    users: dict[str, list[NamedChain]] = {}
    for name, chain in runs:
        check_same_data(name, owner, chain)
        screen = _existing(chain, "screen")
        users.setdefault(chain["hard_negatives"].key + (screen.key if screen else ""), []).append((name, chain))
    tables = []
    for named in users.values():
        owner, screen = named[0][1].owner("hard_negatives"), _existing(named[0][1], "screen")
        embeddings = _existing(owner, "embeddings")
        store = EmbeddingStore.open(embeddings.opened()) if embeddings else None
        folder, view = owner["hard_negatives"].opened() / "table", screen.opened() / "view" if screen else None
        tables.append(open_table_folder([name for name, _ in named], folder, train.split, view, store))
    # Compiling and importing takes seconds, too long for a page.
    tokenise("it's")
    inspect_list(tables[0].lists["i2t"][0], train.split, np.empty(0, np.int64), tables[0].store)
    return train, tuple(tables)


def open_table_folder(
    names: Sequence[str], folder: Path, split: Split, view: Path | None = None, store: EmbeddingStore | None = None
) -> OpenTable:
    """Open the table in a folder; its rows must be those of the split."""
    manifest = read_manifest(folder)
    screen = read_view_manifest(view, manifest)["screen"] if view else ()
    lists = {direction: ListFile(folder, direction, manifest, view) for direction in DIRECTIONS}
    if (len(lists["i2t"]), len(lists["t2i"])) != (split.image_count, split.caption_count):
        raise ValueError(
            f"{folder} has {len(lists['i2t'])} images and {len(lists['t2i'])} captions, but split {split.name!r} has "
            f"{split.image_count} and {split.caption_count}; mine again."
        )
    named = manifest.get("teacher") or {}
    teacher = ", ".join(str(named[part]) for part in ("experiment", "model") if named.get(part))
    return OpenTable(tuple(names), teacher, lists, tuple(rule for rule in RULES if rule in screen), store)


def _open_evaluations(runs: Sequence[NamedChain]) -> tuple[Evaluated, ...]:
    """Open the evaluations; runs with the same queries share an album."""
    opened: list[tuple[Chain, Evaluated]] = []
    for name, chain in runs:
        album = next((there.album for other, there in opened if same_queries(other, chain)), None)
        album = album or Album.of(chain.folder, open_checked(chain, chain.experiment.evaluation.split))
        artifact, split = chain["evaluation"], album.split
        similarity = open_similarity(artifact.opened() / "similarity.npy", split.image_count, split.caption_count)
        opened.append((chain, Evaluated(name, album, artifact.manifest().get("metrics", {}), similarity)))
    return tuple(evaluated for _, evaluated in opened)
