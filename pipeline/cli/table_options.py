"""TABLE arguments, which name an experiment or a table's folder, and options that name the rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import pyarrow as pa

from aoq.pipeline.cli.options import EXPERIMENT, MANIFEST, PATH, Decorator, split, table_folder, together, with_override
from aoq.pipeline.cli.output import to_make
from aoq.pipeline.config.load import names_in
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.data.folder import Split, open_split, split_fingerprint
from aoq.pipeline.hub import is_of_hub
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.tables.contents import require_origin
from aoq.pipeline.tables.files import read_manifest, sides_of
from aoq.pipeline.tables.table import NegativeTable, read_table
from aoq.pipeline.terminal import did_you_mean
from aoq.pipeline.vector_files import COLUMNED, Columns, Given

if TYPE_CHECKING:
    from aoq.pipeline.embedding import EmbeddingStore
    from aoq.pipeline.tables.screens.view import View

_IDS = "A text file, one id a line, or FILE::COLUMN of Parquet, Arrow or a data set."
ROW_OPTIONS = {
    "data": click.option("--data", type=PATH, help="The dataset folder that has captions, ids and pictures."),
    "split": split,
    "texts": click.option("--texts", type=PATH, help="The captions' texts, one a line."),
    "image_ids": click.option("--image-ids", help=f"The images' ids. {_IDS}"),
    "caption_ids": click.option("--caption-ids", help="The captions' ids, given likewise."),
    "image_root": click.option(
        "--image-root", type=PATH, help="The folder of the pictures; an image's file is its id."
    ),
}
# In some commands --texts was called --captions, which names vectors in others.
ROW_OPTIONS["texts or captions"] = click.option(
    "--texts", "--captions", "texts", type=PATH, help="The captions' texts, one a line."
)
own_view = click.option("--view", type=PATH, help="A view made by `aoq screen`; default: the experiment's own screen.")


class RowNames(NamedTuple):
    """Names of a table's rows; None if there are none."""

    captions: Sequence[str] | None
    image_ids: Sequence[str] | None
    caption_ids: Sequence[str] | None


@dataclass(frozen=True)
class RowFiles:
    """Files that name a table's rows: a dataset folder, or texts, ids and pictures."""

    data: Path | None = None
    split: str = "train"
    texts: Path | None = None
    image_ids: str | None = None
    caption_ids: str | None = None
    image_root: Path | None = None

    def read(self, split: Split | None) -> RowNames:
        """Read the names; captions and images without a file of their own go by the split's."""
        captions, image_ids = (None, None) if split is None else (split.captions, split.ids)
        return RowNames(
            captions if self.texts is None else read_lines(self.texts),
            image_ids if self.image_ids is None else read_ids(self.image_ids),
            None if self.caption_ids is None else read_ids(self.caption_ids),
        )

    def require_either(self, **others: object) -> None:
        """Refuse files of what --data has; `others` are further options of a command."""
        chosen = {"texts": self.texts, "image-ids": self.image_ids, **others}
        named = " and ".join(f"--{option}" for option, value in chosen.items() if value is not None)
        if self.data is not None and named:
            raise click.UsageError(f"--data has captions and image ids; leave out {named}")


def read_ids(named: str) -> list[str]:
    """Read ids from the lines of a text file, or from `FILE::COLUMN` of Parquet, of Arrow or of a data set."""
    name, _, column = named.partition("::")
    has_columns = is_of_hub(name) or Path(name).suffix in COLUMNED or Path(name).is_dir()
    if not column and not has_columns:
        return read_lines(Path(named))
    path, part = opened = Given.of(named)
    if not isinstance(columns := opened.read(), Columns):
        raise ValueError(f"{path} holds vectors alone; ids are a column of {', '.join(COLUMNED)}.")
    if part not in (names := columns.named(_holds_ids)):
        named = named.removesuffix("::")
        raise ValueError(f"{named} names no column of ids; those of texts or whole numbers are {names}: {path}::NAME.")
    ids = [value for array in columns.read(part) for value in array.to_pylist()]
    if None in ids:
        raise ValueError(f"{path}: row {ids.index(None)} has no id in column {part!r}; give it one.")
    return list(map(str, ids))


def _holds_ids(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return is_text or pa.types.is_integer(kind)


def row_options(*names: str) -> Decorator:
    """Take some of ROW_OPTIONS, and call the command with the `files` that they name."""
    keys = [name.removesuffix(" or captions") for name in names]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_files(**options: Any) -> Any:
            return command(files=RowFiles(**{key: options.pop(key) for key in keys}), **options)

        return together(*(ROW_OPTIONS[name] for name in names))(with_files)

    return decorate


@dataclass(frozen=True)
class NamedTable:
    """A table, as it was named on the command line."""

    name: str
    folder: Path
    chain: Chain | None = None
    """The experiment's chain, which knows the data; None for a table's folder."""

    def read(self) -> NegativeTable:
        return read_table(self.folder)

    def read_view(self, view: Path | None, *, or_own: bool = False) -> View | None:
        """Read a view of the table; with `or_own`, the default is the experiment's own screen, if it is there."""
        from aoq.pipeline.tables.screens.view import read_view

        if view is None and or_own and self.chain is not None and "screen" in self.chain.stages:
            own = self.chain["screen"]
            view = own.opened() / "view" if own.exists() else None
        return None if view is None else read_view(view, read_manifest(self.folder))

    def split(self) -> Split | None:
        """Open the experiment's training split by the table's owner: the experiment's own data may be missing still."""
        if self.chain is None:
            return None
        from aoq.pipeline.stages.splits import open_train_split

        return open_train_split(self.chain.owner("hard_negatives"))

    def split_of(self, files: RowFiles) -> Split | None:
        """Open the split with captions and image ids: that of --data, or else the experiment's.

        An experiment's own data are opened as it trains on them: with its noise, or a part of the images.

        Raises:
            ValueError: if a table of two sides was mined from other data.
        """
        if files.data is None:
            return self.split()
        fingerprint = split_fingerprint(files.data, files.split)
        own = self.chain and split_fingerprint(self.chain.folder, self.chain.experiment.dataset.train)
        if fingerprint == own:
            return self.split()
        opened = open_split(files.data, files.split)
        if len(sides_of(read_manifest(self.folder))) > 1:
            require_origin(self.folder, opened, fingerprint)
        return opened

    def data_folder(self, files: RowFiles) -> Path | None:
        """Return the folder that may name the pictures of `split_of`; None for a part of a split, whose rows differ."""
        if self.chain is None:
            return files.data
        return (files.data or self.chain.folder) if self.chain.experiment.dataset.train_images is None else None

    def photographs(self, files: RowFiles, split: Split | None, unpacked: Path | None) -> Sequence[str] | None:
        """Return the file of each photograph of the split, if its folder names them."""
        from aoq.pipeline.prepare.photographs import photograph_files

        folder = self.data_folder(files)
        return photograph_files(folder, split.name, split.image_count, unpacked) if folder and split else None

    def embeddings(self) -> EmbeddingStore | None:
        """Open the vectors that the experiment's table was mined from, if they are there."""
        from aoq.pipeline.embedding import EmbeddingStore

        made = self.chain and self.chain.owner("hard_negatives").stages.get("embeddings")
        return EmbeddingStore.open(made.opened()) if made and made.exists() else None


def takes_tables(*names: str) -> Decorator:
    """Take TABLE arguments, and call the command with the tables; it needs the options `roots` too."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_tables(data_root: Path, artifact_root: Path, **options: Any) -> Any:
            places = {"data_root": data_root, "artifact_root": artifact_root}
            return command(**{**options, **{name: find_table(options[name], **places) for name in names}})

        return together(*(click.argument(name, type=EXPERIMENT) for name in names))(with_tables)

    return decorate


def find_table(named: str, **places: Path) -> NamedTable:
    """Find the table in the folder with that name, or else that of the experiment with that name."""
    if (folder := table_folder(named)) is not None:
        return NamedTable(named, folder)

    name, change = with_override(named, "")
    known = names_in()
    if name not in known and not (name.endswith(".toml") and Path(name).is_file()):
        question = did_you_mean(name, known) or "`aoq list` shows the experiments."
        raise FileNotFoundError(f"{named} is neither an experiment nor a table's folder with {MANIFEST}; {question}")
    chain = plan(name, override=change, **places)
    made = chain["hard_negatives"]
    if not made.exists():
        raise ValueError(f"{named} has no table yet; run: {to_make('hard_negatives', named)}")
    return NamedTable(named, made.opened() / "table", chain)
