"""Opening what there is of experiments, refusing what cannot stand side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.browse.lists import ListFile
from aoq.pipeline.browse.source import Album, Evaluated, OpenTable, Source
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.data.folder import Split, open_split
from aoq.pipeline.data.vocabulary import tokenise
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.planning.chain import Chain, check_same_data, run_name, same_queries, split_member, table_owner
from aoq.pipeline.produce.inputs import open_train_split
from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.files import read_manifest
from aoq.pipeline.tables.inspection import inspect_list
from aoq.pipeline.tables.screens.view import read_view_manifest


def open_source(asked: Sequence[tuple[str, Chain]]) -> Source:
    """Experiments as they are named, overrides and all."""
    for named, chain in asked:
        if not (_has_table(chain) or _is_evaluated(chain)):
            raise ValueError(_nothing_yet(named, chain))
    runs = [(run_name(*split_member(named)), chain) for named, chain in asked]
    tables = _open_tables([run for run in runs if _has_table(run[1])])
    return Source(*tables, _open_evaluations([run for run in runs if _is_evaluated(run[1])]))


def _has_table(chain: Chain) -> bool:
    owner = table_owner(chain)
    return owner is not None and owner["hard_negatives"].exists()


def _is_evaluated(chain: Chain) -> bool:
    return "evaluation" in chain.stages and chain["evaluation"].exists()


def _nothing_yet(named: str, chain: Chain) -> str:
    experiment, override = split_member(named)
    task = "Evaluation" if table_owner(chain) is None else "HardNegatives"
    command = f"luigi --module tasks {task} --experiment {quote(experiment)}"
    if override:
        command += f" --override {quote(override)}"
    return f"{named} has neither a table nor an evaluation yet; run: {command}"


def _open_tables(runs: Sequence[tuple[str, Chain]]) -> tuple[Album | None, tuple[OpenTable, ...]]:
    users: dict[str, list[tuple[str, Chain]]] = {}
    for name, chain in runs:
        screen = _screen(chain)
        users.setdefault(chain["hard_negatives"].key + (screen.key if screen else ""), []).append((name, chain))
    if not users:
        return None, ()
    owner = table_owner(runs[0][1])
    assert owner is not None  # it has a table
    for name, chain in runs:
        check_same_data(name, owner, chain)
    train = Album.of(owner.folder, open_train_split(owner))
    tables = tuple(_open_table(each, train.split) for each in users.values())
    _warm_up(tables[0], train.split)
    return train, tables


def _warm_up(table: OpenTable, split: Split) -> None:
    """Look once: what is compiled and imported for it takes seconds, which no page should take."""
    tokenise("it's")
    inspect_list(table.lists["i2t"][0], split, np.empty(0, np.int64), table.store)


def _screen(chain: Chain) -> Artifact | None:
    made = chain.stages.get("screen")
    return made if made and made.exists() else None


def _open_table(users: Sequence[tuple[str, Chain]], split: Split) -> OpenTable:
    """Of runs that share it."""
    chain, owner = users[0][1], users[0][1].owner("hard_negatives")
    folder, screen = owner["hard_negatives"].path / "table", _screen(chain)
    manifest = read_manifest(folder)
    view = screen.path / "view" if screen else None
    rules = _rules(view, manifest) if view else ()
    lists = {direction: ListFile(folder, direction, manifest, view) for direction in DIRECTIONS}
    if (len(lists["i2t"]), len(lists["t2i"])) != (split.image_count, split.caption_count):
        raise ValueError(
            f"{folder} is of {len(lists['i2t'])} images and {len(lists['t2i'])} captions, and split {split.name!r} has "
            f"{split.image_count} and {split.caption_count}; mine again."
        )
    made = owner.stages.get("embeddings")
    store = EmbeddingStore.open(made.path) if made and made.exists() else None
    return OpenTable(tuple(name for name, _ in users), manifest, lists, rules, store)


def _rules(view: Path, table: Mapping[str, Any]) -> tuple[str, ...]:
    asked = read_view_manifest(view, table)["screen"]
    return tuple(rule for rule in RULES if rule in asked)


def _open_evaluations(runs: Sequence[tuple[str, Chain]]) -> tuple[Evaluated, ...]:
    """Those of the same queries share an album."""
    opened: list[tuple[Chain, Evaluated]] = []
    for name, chain in runs:
        album = next((there.album for other, there in opened if same_queries(other, chain)), None)
        album = album or Album.of(chain.folder, open_split(chain.folder, chain.experiment.evaluation.split))
        opened.append((chain, _open_evaluation(name, chain["evaluation"], album)))
    return tuple(evaluated for _, evaluated in opened)


def _open_evaluation(name: str, made: Artifact, album: Album) -> Evaluated:
    file, expected = made.path / "similarity.npy", (album.split.image_count, album.split.caption_count)
    similarity = np.load(file, mmap_mode="r")
    if similarity.shape != expected:
        raise ValueError(f"{file} is of {similarity.shape} images and captions, and the split has {expected}.")
    return Evaluated(name, album, made.manifest().get("metrics", {}), similarity)
