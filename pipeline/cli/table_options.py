"""TABLE arguments, which name an experiment or a table's folder, and options that name a table's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from aoq.pipeline.cli import options
from aoq.pipeline.cli.options import PATH, Decorator
from aoq.pipeline.cli.output import to_make
from aoq.pipeline.cli.vector_options import ID_OPTIONS
from aoq.pipeline.config.load import names_in
from aoq.pipeline.console import did_you_mean
from aoq.pipeline.data.folder import Split, open_split, split_fingerprint
from aoq.pipeline.prepare.photographs import photograph_files
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.splits import open_train_split
from aoq.pipeline.tables.contents import require_origin
from aoq.pipeline.tables.files import read_ids, read_manifest, table_sides
from aoq.pipeline.tables.pairs import TWO_SIDES, read_id_file, read_text_lines, require_order
from aoq.pipeline.tables.screens.view import View, read_view
from aoq.pipeline.tables.table import NegativeTable, read_table

if TYPE_CHECKING:
    from aoq.pipeline.embedding import EmbeddingStore

_RowNames = Sequence[str] | None
own_view = click.option("--view", type=PATH, help="A view made by `aoq screen`; default: the experiment's own screen.")


@dataclass(frozen=True)
class RowFiles:
    """Files that name a table's rows: a dataset folder, or texts, ids and pictures."""

    data: Path | None = None
    split: str = "train"
    texts: Path | None = None
    image_ids: str | None = None
    caption_ids: str | None = None
    image_root: Path | None = None

    def read(self, split: Split | None) -> tuple[_RowNames, _RowNames, _RowNames]:
        """Read captions, image ids and caption ids; the first two come from the split if they have no file."""
        captions, image_ids = (None, None) if split is None else (split.captions, split.ids)
        return (
            captions if self.texts is None else read_text_lines(self.texts),
            image_ids if self.image_ids is None else read_id_file(self.image_ids),
            None if self.caption_ids is None else read_id_file(self.caption_ids),
        )

    def require_either(self, **others: object) -> None:
        """Refuse files that --data replaces; `others` are further options of a command."""
        chosen = {"texts": self.texts, "image-ids": self.image_ids, **others}
        named = " and ".join(f"--{option}" for option, value in chosen.items() if value is not None)
        if self.data is not None and named:
            raise click.UsageError(f"--data has captions and image ids; leave out {named}")


def row_options(*names: str, older_texts: tuple[str, ...] = ()) -> Decorator:
    """Take options of these names; the command, or its table, gets the `files` that they name."""
    by_name = {
        "data": click.option("--data", type=PATH, help="The dataset folder with captions, ids, pairs and pictures."),
        "split": options.split,
        "texts": click.option("--texts", *older_texts, "texts", type=PATH, help="The captions' texts, one per line."),
        **ID_OPTIONS,
        "image_root": click.option(
            "--image-root", type=PATH, help="The folder of the pictures; an image's id names its file."
        ),
    }

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_files(**given: Any) -> Any:
            return command(files=RowFiles(**{name: given.pop(name) for name in names}), **given)

        return options.together(*(by_name[name] for name in names))(with_files)

    return decorate


@dataclass(frozen=True)
class NamedTable:
    """A table that the command line names, with the files that name its rows."""

    name: str
    folder: Path
    chain: Chain | None = None
    """The experiment's chain, which has the data; None for a table's folder."""
    files: RowFiles = RowFiles()

    def read(self) -> NegativeTable:
        return read_table(self.folder)

    def read_view(self, view: Path | None, *, or_own: bool = False) -> View | None:
        """Read a view of the table; with `or_own`, the default is the experiment's own screen, if it exists."""
        if view is None and or_own and self.chain is not None and (own := self.chain.made("screen")):
            view = own.opened() / "view"
        return None if view is None else read_view(view, read_manifest(self.folder))

    @cached_property
    def split(self) -> Split | None:
        """The split with captions and image ids: that of --data, or else the experiment's.

        An experiment's own split has its noise and is limited to its `train_images`. Other data than those that a table
        of two sides was mined from are refused.
        """
        data, chain = self.files.data, self.chain
        fingerprint = None if data is None else split_fingerprint(data, self.files.split)
        if chain and fingerprint in (None, split_fingerprint(chain.folder, chain.experiment.dataset.train)):
            return open_train_split(chain.owner("hard_negatives"))  # the experiment's data may still be missing
        if data is None or fingerprint is None:
            return None
        opened = open_split(data, self.files.split)
        if len(table_sides(read_manifest(self.folder))) > 1:
            require_origin(self.folder, opened, fingerprint)
        return opened

    @cached_property
    def names(self) -> tuple[_RowNames, _RowNames, _RowNames]:
        """Captions, image ids and caption ids; ids that the table keeps for other rows are refused."""
        captions, *ids = self.files.read(self.split)
        kept = read_ids(self.folder, read_manifest(self.folder))
        for side, given in zip(TWO_SIDES, ids, strict=True):
            if given is not None and side in kept:
                require_order(given, kept[side], side.removesuffix("s"))
        return captions, ids[0], ids[1]

    @property
    def data_folder(self) -> Path | None:
        """The folder that may name the pictures of the split; None for a part of a split, whose rows differ."""
        if self.chain is None:
            return self.files.data
        return (self.files.data or self.chain.folder) if self.chain.experiment.dataset.train_images is None else None

    def photographs(self, unpacked: Path | None) -> Sequence[str] | None:
        """Return the file of each photograph of the split, if its folder names these files."""
        folder, split = self.data_folder, self.split
        return photograph_files(folder, split.name, split.image_count, unpacked) if folder and split else None

    def embeddings(self) -> EmbeddingStore | None:
        """Open the vectors that the experiment's table was mined from, if they exist."""
        from aoq.pipeline.embedding import EmbeddingStore

        artifact = self.chain and self.chain.owner("hard_negatives").made("embeddings")
        return EmbeddingStore.open(artifact.opened()) if artifact else None


def takes_tables(*names: str, json: bool = False) -> Decorator:
    """Take TABLE arguments and the roots; call the command with the tables."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_tables(data_root: Path, artifact_root: Path, **given: Any) -> Any:
            files = given.pop("files", RowFiles())
            tables = {name: _find_table(given[name], files, data_root, artifact_root) for name in names}
            return command(**{**given, **tables})

        arguments = (click.argument(name, type=options.EXPERIMENT) for name in names)
        return options.together(*arguments, *[options.as_json] * json, options.roots)(with_tables)

    return decorate


def _find_table(named: str, files: RowFiles, data_root: Path, artifact_root: Path) -> NamedTable:
    if (folder := options.table_folder(named)) is not None:
        return NamedTable(named, folder, files=files)
    name, change = options.with_override(named, "")
    known = names_in()
    if name not in known and not (name.endswith(".toml") and Path(name).is_file()):
        question = did_you_mean(name, known) or "`aoq list` shows the experiments."
        raise FileNotFoundError(f"{named} is neither an experiment nor a table's folder with manifest.json; {question}")
    chain = plan(name, override=change, data_root=data_root, artifact_root=artifact_root)
    artifact = chain["hard_negatives"]
    if not artifact.exists():
        raise ValueError(f"{named} has no table yet; run: {to_make('hard_negatives', named)}")
    return NamedTable(named, artifact.opened() / "table", chain, files)
