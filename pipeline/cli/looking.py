"""Tables to look at: that of an experiment, with its data, or any table's folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aoq.pipeline.cli.naming import EXPERIMENT, to_make, with_override
from aoq.pipeline.near_names import did_you_mean

if TYPE_CHECKING:
    from aoq.pipeline.data.folder import Split
    from aoq.pipeline.embedding import EmbeddingStore
    from aoq.pipeline.planning.chain import Chain

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Looked:
    """A table as it was named."""

    asked: str
    folder: Path
    chain: Chain | None = None
    """The experiment's, which knows the data; None of a table's folder."""

    def view(self, given: Path | None) -> Path | None:
        """The view that was given; else the experiment's own screen, if it was made."""
        if given is None and self.chain is not None and "screen" in self.chain.stages:
            made = self.chain["screen"]
            return made.opened() / "view" if made.exists() else None
        return given

    def split(self) -> Split | None:
        """The experiment's training split, through the table's owner: the experiment's own data may not be made yet."""
        if self.chain is None:
            return None
        from aoq.pipeline.produce.data import open_train_split

        return open_train_split(self.chain.owner("hard_negatives"))

    def data_folder(self, data: Path | None) -> Path | None:
        """The folder that names the pictures of `captioned`; None for a part of a split, which has none."""
        if self.chain is None:
            return data
        return (data or self.chain.folder) if self.chain.experiment.dataset.train_images is None else None

    def captioned(self, data: Path | None, split: str) -> Split | None:
        """Open the split with captions and image ids: of the given data, else the experiment's.

        Data that are the experiment's own are opened as it trains on them: with its noise, or a part of the images.

        Raises:
            ValueError: if a table of two sides was mined on other data than those given.
        """
        from aoq.pipeline.data.folder import open_split, split_fingerprint
        from aoq.pipeline.tables.files import read_manifest, sides_of
        from aoq.pipeline.tables.origin import require_origin

        if data is None:
            return self.split()
        given = split_fingerprint(data, split)
        if self.chain is not None and given == split_fingerprint(
            self.chain.folder, self.chain.experiment.dataset.train
        ):
            return self.split()
        opened = open_split(data, split)
        if len(sides_of(read_manifest(self.folder))) > 1:
            require_origin(self.folder, opened, given)
        return opened


def takes_tables(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Take arguments that are tables, and call with what they are; `roots`, below it, says where experiments are."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_tables(data_root: Path, artifact_root: Path, **given: Any) -> Any:
            places = {"data_root": data_root, "artifact_root": artifact_root}
            return command(**{**given, **{name: find_table(given[name], **places) for name in names}})

        arguments = [click.argument(name, type=EXPERIMENT) for name in names]
        return reduce(lambda made, argument: argument(made), reversed(arguments), with_tables)

    return decorate


def table_folder(asked: str) -> Path | None:
    """The folder with that name if a table is there, or in its `table`."""
    return next((place for place in (Path(asked), Path(asked) / "table") if (place / MANIFEST).is_file()), None)


def find_table(asked: str, **places: Path) -> Looked:
    """The folder with that name, if a table is there; else the table of the experiment with that name."""
    if (folder := table_folder(asked)) is not None:
        return Looked(asked, folder)
    from aoq.pipeline.config.named_files import names_in

    name, change = with_override(asked, "")
    known = names_in()
    if name not in known and not (name.endswith(".toml") and Path(name).is_file()):
        question = did_you_mean(name, known) or "`aoq list` shows the experiments."
        raise FileNotFoundError(
            f"{asked} holds no {MANIFEST}, so it is no negative table, and it is no experiment; {question}"
        )
    from aoq.pipeline.planning.planner import plan

    chain = plan(name, override=change, **places)
    made = chain["hard_negatives"]
    if not made.exists():
        raise ValueError(f"{asked} has no table yet; run: {to_make('hard_negatives', asked)}")
    return Looked(asked, made.opened() / "table", chain)


def teachers_vectors(chain: Chain) -> EmbeddingStore | None:
    """Open the vectors that the experiment's table was mined from, if they are there."""
    from aoq.pipeline.embedding import EmbeddingStore

    embeddings = chain.owner("hard_negatives").stages.get("embeddings")
    return EmbeddingStore.open(embeddings.opened()) if embeddings and embeddings.exists() else None


def texts_of(given: Path | None, split: Split | None) -> Sequence[str] | None:
    """The captions that were given, one a line, else the split's."""
    from aoq.pipeline.data.files import read_lines

    return read_lines(given) if given is not None else None if split is None else split.captions
