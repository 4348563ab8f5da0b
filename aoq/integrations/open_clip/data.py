"""Photographs and captions with the rows of their table, in batches drawn from it, for open_clip's training.

The training passes two tensors of a batch to the model, and the model's output to the loss. So rows follow the tokens
in ROW_NUMBERS further columns, and `carry_rows` lets the model return them beside its features: then a loss knows which
pairs match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from aoq.integrations.shared import Items, check_drawing, count_groups, processes, require_same_draws
from aoq.pipeline.data.folder import open_split, split_fingerprint
from aoq.pipeline.data.images import decode
from aoq.pipeline.prepare.photographs import Photographs, open_photographs
from aoq.pipeline.tables.contents import require_origin
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, table_parts
from aoq.pipeline.training.batch_sampler import BatchSampler

ROW_NUMBERS = 3
"""The row of a pair's image, the row of its caption, and its group."""
DataRow = tuple[Any, Tensor, Tensor]
"""Pixels (3, height, width), tokens (length,), and rows (3,)."""


class TableData(Dataset[DataRow]):
    """The photographs and captions of a table; `data[image, caption]` is an image, tokens and their rows.

    `images` (paths of files, or pictures) and `captions` (texts) are in the table's order, or in any order with
    `image_ids` and `caption_ids`, which are looked up among the ids that the table keeps. `preprocess` and `tokenizer`
    come from `open_clip.create_model_and_transforms` and `open_clip.get_tokenizer`.
    """

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        images: Sequence[Any],
        captions: Sequence[str],
        *,
        preprocess: Callable[[Any], Any],
        tokenizer: Callable[[list[str]], Tensor],
        image_ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
    ) -> None:
        bare = table_parts(table).table
        if bare.is_one_set:
            raise ValueError("the table has one set, but open_clip trains on images with captions; mine both.")
        self.table = table
        self._sources = images, captions
        self._images = Items(bare, "images", images, image_ids)
        self._captions = Items(bare, "captions", captions, caption_ids)
        self._preprocess, self._tokenizer = preprocess, tokenizer
        self._photographs: Photographs | None = None
        """Photographs of a prepared folder; `images` are then their rows."""

    @classmethod
    def of_folder(
        cls, table: NegativeTable | ScreenedTable, folder: Path | str, split: str = "train", **options: Any
    ) -> TableData:
        """Open a folder that `aoq prepare` made; the table must have been mined on this split.

        A photograph that has changed since it was prepared is refused when it is read.
        """
        folder, opened = Path(folder), open_split(Path(folder), split)
        require_origin(table_parts(table).table, opened, split_fingerprint(folder, split))
        data = cls(table, range(opened.image_count), opened.captions, **options)
        data._photographs = open_photographs(folder, split, opened.image_count)
        return data

    def __getitem__(self, row: Sequence[int] | np.ndarray) -> DataRow:
        """Return a pair (image, caption); a third number names the pair's group."""
        image, caption, *group = (int(number) for number in row)
        (picture,), (text,) = self._images[np.array([image])], self._captions[np.array([caption])]
        picture = picture if self._photographs is None else self._photographs.read(picture)
        rows = torch.tensor([image, caption, *(group or [0])])
        return self._preprocess(_opened(picture)), self._tokenizer([text])[0], rows

    def loader(
        self,
        batch_size: int,
        *,
        negatives: str | int | None = "offline",
        batches: str | None = None,
        seed: int = 0,
        workers: int = 0,
        **drawing: Any,
    ) -> SimpleNamespace:
        """Make open_clip's data["train"], with `dataloader` and `set_epoch`: `batch_size` pairs in each process.

        A batch is images and tokens with rows, in groups: the pairs; for `negatives="offline"` also an offline image
        and caption of each; for "quintuplet" also their companions; for a number, as many offline images and captions,
        which a loss with the same `negatives` compares with all pairs of the batch. Each pair comes once per epoch, at
        random or in mined batches (`batches="mined"`). Batches depend only on the seed, the epoch and the step; a short
        last batch is dropped. Further options are those of `aoq.BatchSampler`.
        """
        check_drawing(drawing)
        groups, group = count_groups(negatives), processes()
        require_same_draws(self.table, self._names(), batch_size, negatives, batches, seed, drawing)
        sampler = BatchSampler(
            self.table,
            batch_size=batch_size,
            seed=seed,
            rank=group.rank,
            world_size=group.count,
            companions=None if negatives == "quintuplet" else "omit",
            batches=batches,
            drop_last=True,
            negatives=negatives if isinstance(negatives, int) else None,
            **drawing,
        )
        loader: Any = DataLoader(
            self,
            batch_sampler=_Grouped(sampler, max(2, groups), groups),
            num_workers=workers,
            collate_fn=_collated,
            pin_memory=torch.cuda.is_available(),
            persistent_workers=workers > 0,
        )
        loader.num_batches = len(sampler)
        loader.num_samples = len(sampler) * batch_size * group.count * groups
        return SimpleNamespace(dataloader=loader, set_epoch=sampler.set_epoch)

    def _names(self) -> list[Any]:
        """Return the images' file names, where known, and the captions."""
        images, captions = self._sources
        if not isinstance(images, list | tuple):  # others may read each image
            return [len(images), list(captions)]
        return [[Path(one).name if isinstance(one, str | Path) else "" for one in images], list(captions)]


class _Grouped(Sampler[list[Any]]):
    """Rows (image, caption, group) of each batch, with the first `wanted` of the `drawn` groups."""

    def __init__(self, sampler: BatchSampler, drawn: int, wanted: int) -> None:
        self._sampler, self._drawn, self._wanted = sampler, drawn, wanted

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        for batch in self._sampler:
            size = len(batch) // self._drawn
            groups = np.repeat(np.arange(self._wanted), size)
            yield [*np.column_stack([batch[: len(groups)], groups])]


def _opened(picture: Any) -> Any:
    """Decode a path or a file's content, upright and in RGB; pass pictures through."""
    if not isinstance(picture, str | Path | bytes):
        return picture
    name = "a photograph" if isinstance(picture, bytes) else picture
    try:
        return decode(picture if isinstance(picture, bytes) else Path(picture).read_bytes()).image
    except (OSError, ValueError) as error:
        raise ValueError(f"{name}: {error}; replace it, or mine without it.") from None


def _collated(rows: list[DataRow]) -> tuple[Tensor, Tensor]:
    images, tokens, numbers = (torch.stack(column) for column in zip(*rows, strict=True))
    return images, with_rows(tokens, numbers)


def with_rows(tokens: Int[Tensor, "pairs length"], rows: Int[Tensor, "pairs 3"]) -> Int[Tensor, "pairs longer"]:
    """Append rows to the tokens."""
    return torch.cat([tokens, rows.to(tokens.dtype)], dim=1)


def carry_rows(model: nn.Module) -> nn.Module:
    """Let an open_clip model move rows from the tokens to `rows` of its output; its weights stay unchanged.

    Tokens without rows still work. Call this before wrapping in DistributedDataParallel and before compiling.
    """
    if not isinstance(length := getattr(model, "context_length", None), int):
        raise ValueError(
            f"{type(model).__name__} has no context_length, which separates tokens from rows; give a model of "
            "open_clip, before anything wraps it."
        )
    removed: list[Tensor] = []

    def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        removed.clear()
        if "text" in named:
            return args, {**named, "text": _without_rows(named["text"], length, removed)}
        return (*args[:1], *(_without_rows(text, length, removed) for text in args[1:2]), *args[2:]), named

    def after(_: nn.Module, _args: tuple[Any, ...], _named: dict[str, Any], output: Any) -> Any:
        if not removed:
            return output
        if not isinstance(output, dict):
            raise ValueError("the model returns a tuple instead of a dict; make it with output_dict=True.")
        return {**output, "rows": removed.pop()}

    model.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(after, with_kwargs=True)
    return model


def _without_rows(text: Tensor | None, length: int, removed: list[Tensor]) -> Tensor | None:
    if text is None or text.shape[1] != length + ROW_NUMBERS:
        return text
    removed.append(text[:, length:])
    return text[:, :length]
