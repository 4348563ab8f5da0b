"""Content of the pages: tables with the rows that they list, and evaluations with their queries."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.browse.survey import Survey, Suspect, merge_suspects, survey
from aoq.pipeline.config.load import split_member
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.images import Picture, Thumbnails, small_picture
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.files import digest
from aoq.pipeline.search.problem import DIRECTIONS, OPPOSITE, Direction
from aoq.pipeline.stages.chain import Chain, check_same_data, run_name, same_queries, table_owner
from aoq.pipeline.stages.splits import open_evaluated, open_train_split
from aoq.pipeline.tables.contents import ShownRows, TableRows
from aoq.pipeline.tables.exchange.outgoing import find_pictures
from aoq.pipeline.tables.files import corrects_hubs
from aoq.pipeline.tables.inspection import inspect_anchor
from aoq.pipeline.tables.screens.view import View, read_view
from aoq.pipeline.tables.table import NegativeTable, read_table

logger = logging.getLogger(__name__)


def find_captions(texts: Sequence[str], query: str) -> Sequence[int]:
    """Find the rows of folded texts with all words of a query, in any order and case, each at the start of a word.

    In scripts without case, and in emoji, a word may start anywhere. An empty query finds none.

    >>> find_captions(["two dogs run", "a woman runs", "ein dog"], "RUN dog")
    [0]
    """
    words = set(folded(query).split())
    rows: Sequence[int] = range(len(texts)) if words else ()
    for word in words:
        start = r"(?<!\w)" if word[0].isdecimal() or word[0].upper() != word[0] else ""
        matches = re.compile(start + re.escape(word)).search
        rows = [row for row in rows if word in texts[row] and matches(texts[row])]
    return rows


def folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


class Album:
    """The rows of a table or of a split, with their pictures and a search of the captions."""

    def __init__(self, name: str, folder: Path, split: ShownRows, read: Callable[[int], Picture | None]) -> None:
        # The key includes the folder: browsers cache pictures, and another data set may be served from the same port.
        self.key = f"{name}-{digest([str(folder), list(split.ids)])[:8]}"
        self.split, self.read_picture, self.texts = split, read, [*map(folded, split.captions)]


def split_album(folder: Path, split: Split) -> Album:
    return Album(split.name, folder, split, Thumbnails(folder, split).read)


def _picture_below(root: Path, ids: Sequence[str], image: int) -> Picture | None:
    try:
        (file,) = find_pictures(root, [ids[image]])
        return small_picture(Path(file))
    except (ValueError, OSError) as error:
        logger.info("%s", error)
        return None


@dataclass(frozen=True)
class OpenTable:
    """A negative table, and the view that the runs' screen makes of it, if any."""

    runs: tuple[str, ...]
    """Runs that train on it under this view."""
    lists: NegativeTable
    view: View | None
    store: EmbeddingStore | None

    @property
    def name(self) -> str:
        return self.runs[0]

    @property
    def teacher(self) -> str:
        """The model that scored the table."""
        named = self.lists.manifest.get("teacher") or {}
        return ", ".join(str(named[part]) for part in ("experiment", "model") if named.get(part))

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(rule for rule in RULES if self.view and rule in self.view.manifest["screen"])

    @cached_property
    def surveys(self) -> dict[Direction, Survey]:
        """Surveys by direction, computed when a page first needs them."""
        judged = {one: None if self.view is None else self.view[one] for one in DIRECTIONS}
        return {one: survey(self.lists[one], judged[one], one, len(self.lists[OPPOSITE[one]])) for one in DIRECTIONS}

    @cached_property
    def suspects(self) -> list[Suspect]:
        """Suspected false negatives, the most suspected first."""
        return merge_suspects(list(self.surveys.values()))


@dataclass(frozen=True)
class Evaluated:
    """A run's answers to the queries of its evaluation split; the similarities stay on disk."""

    name: str
    album: Album
    split: Split
    metrics: Mapping[str, Any]
    similarity: Float32[np.ndarray, "images captions"]


@dataclass(frozen=True)
class Gallery:
    """Everything the pages show; all tables have the same rows."""

    train: Album | None
    tables: tuple[OpenTable, ...]
    evaluations: tuple[Evaluated, ...]


def open_folders(
    folders: Sequence[Path],
    split: Split | None = None,
    texts: Sequence[str] | None = None,
    image_ids: Sequence[str] | None = None,
    *,
    data: Path | None = None,
    image_root: Path | None = None,
    view: Path | None = None,
) -> Gallery:
    """Open tables that share their rows; refuse others, and texts or ids that do not fit.

    The rows are those of a `split` of the dataset folder `data`, or else the table's own. Pictures are below
    `image_root`, named by the images' ids with or without an extension, or those of `data`.
    """
    first, *others = tables = [read_table(folder) for folder in folders]
    if any(table.is_one_set for table in tables):
        raise ValueError("a table of one set has no two sides to browse; look at it with `aoq inspect` or `aoq stats`.")
    for folder, other in zip(folders[1:], others, strict=True):
        counts = ((len(table.i2t), len(table.t2i)) for table in (first, other))
        if len({*counts}) > 1 or not np.array_equal(np.asarray(first.positives), np.asarray(other.positives)):
            raise ValueError(f"{folders[0]} and {folder} have different rows or pairs; browse one of them at a time.")
    if view is not None and others:
        raise ValueError("--view belongs to one table, but several are named; name one.")
    texts = texts or first.ids.get("captions") or [f"caption {row}" for row in range(len(first.t2i))]
    rows = split or TableRows(first, texts, image_ids)
    read: Callable[[int], Picture | None] = partial(_picture_below, image_root or folders[0] / "thumbs", rows.ids)
    if image_root is not None:
        find_pictures(image_root, [])  # refuses a path that is no folder
    elif split is not None and data is not None:
        read = Thumbnails(data, split).read
    judged = None if view is None else read_view(view, first.manifest)
    names = [folder.resolve().name for folder in folders]
    names = [str(folder) if names.count(name) > 1 else name for name, folder in zip(names, folders, strict=True)]
    opened = tuple(OpenTable((name,), table, judged, None) for name, table in zip(names, tables, strict=True))
    return Gallery(Album("table", image_root or folders[0].absolute(), rows, read), opened, ())


def open_runs(chains: Sequence[tuple[str, Chain]]) -> Gallery:
    """Open the existing artefacts of experiments, named with their overrides; refuse runs on different data."""
    listed, evaluated = [], []
    for named, chain in chains:
        run, owner = (run_name(*split_member(named)), chain), table_owner(chain)
        has_table, is_evaluated = owner and owner.made("hard_negatives"), chain.made("evaluation")
        if not (has_table or is_evaluated):
            command = f"run {quote(named)} --round hard_negatives" if owner else f"evaluate {quote(named)}"
            raise ValueError(f"{named} has neither a table nor an evaluation yet; run: aoq {command}")
        listed += [run] if has_table else []
        evaluated += [run] if is_evaluated else []
    return Gallery(*_open_tables(listed), _open_evaluations(evaluated))


def _open_tables(runs: Sequence[tuple[str, Chain]]) -> tuple[Album | None, tuple[OpenTable, ...]]:
    if not runs:
        return None, ()
    owner = runs[0][1].owner("hard_negatives")
    train = split_album(owner.folder, split := open_train_split(owner))
    users: dict[str, list[tuple[str, Chain]]] = {}
    for name, chain in runs:
        check_same_data(name, owner, chain)
        screen = chain.made("screen")
        users.setdefault(chain["hard_negatives"].key + (screen.key if screen else ""), []).append((name, chain))
    tables = []
    for named in users.values():
        owner, screen = named[0][1].owner("hard_negatives"), named[0][1].made("screen")
        embeddings, table = owner.made("embeddings"), read_table(owner["hard_negatives"].opened() / "table")
        store = EmbeddingStore.open(embeddings.opened()) if embeddings and not corrects_hubs(table.manifest) else None
        view = read_view(screen.opened() / "view", table.manifest) if screen else None
        tables.append(OpenTable(tuple(name for name, _ in named), table, view, store))
    inspect_anchor(table, split, "i2t", 0, 0, store)  # compiling and importing takes seconds, too long for a page
    return train, tuple(tables)


def _open_evaluations(runs: Sequence[tuple[str, Chain]]) -> tuple[Evaluated, ...]:
    opened: list[tuple[Chain, Evaluated]] = []
    for name, chain in runs:
        split, similarity = open_evaluated(chain)
        album = next((there.album for other, there in opened if same_queries(other, chain)), None)
        metrics, album = chain["evaluation"].manifest().get("metrics", {}), album or split_album(chain.folder, split)
        opened.append((chain, Evaluated(name, album, split, metrics, similarity)))
    return tuple(evaluated for _, evaluated in opened)
