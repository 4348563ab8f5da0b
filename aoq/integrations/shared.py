"""Parts of all integrations: items and teachers' vectors of a table's rows, several processes, equal draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from aoq.pipeline.files import digest
from aoq.pipeline.losses.distillation import batch_distillation
from aoq.pipeline.losses.similarities import Similarities, offline_similarities
from aoq.pipeline.reading import host_array
from aoq.pipeline.tables.pairs import Pairs, pair_keys, require_one_each, rows_by_id
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, table_parts
from aoq.pipeline.training.processes import ALONE, Processes


def count_groups(negatives: str | int | None) -> int:
    """Return the number of pairs drawn per true pair, itself included.

    >>> count_groups("quintuplet"), count_groups(4)
    (3, 5)
    """
    drawn: dict[str | int | None, int] = {None: 1, "offline": 2, "quintuplet": 3}
    if negatives not in drawn and not (isinstance(negatives, int) and negatives > 0):
        raise ValueError(f'negatives is {negatives!r}; it is "quintuplet", "offline", None, or a number from 1.')
    return 1 + negatives if isinstance(negatives, int) else drawn[negatives]


def check_drawing(drawing: Mapping[str, Any]) -> None:
    """Refuse an option of `aoq.BatchSampler` that the losses could not follow."""
    if "shared" in drawing:
        raise ValueError("the losses here compare negatives with the whole batch; leave `shared` out.")


def find_places(table: NegativeTable, side: str, items: Sized, ids: Sequence[str] | None) -> np.ndarray:
    """Return the place in `items` of each row of a side: the same place, or the one that the table's ids find."""
    if ids is None:
        require_one_each(items, side, count := len(table.i2t if side == "images" else table.t2i))
        return np.arange(count)
    if side not in table.ids:
        raise ValueError(f"the {side} have ids, but the table keeps none; give them in the table's order, without ids.")
    if len(ids) != len(items):
        raise ValueError(f"{len(ids)} {side[:-1]}_ids name {len(items)} {side}; give one each.")
    rows = rows_by_id(host_array(ids, f"{side[:-1]}_ids").astype(str).tolist(), side[:-1])  # numbers are ids too
    if missing := [name for name in table.ids[side] if name not in rows]:
        raise ValueError(
            f"{len(missing)} of the table's {side} are not among the ids, the first is {missing[0]!r}; give the data "
            "that the table was mined from."
        )
    return np.array([rows[name] for name in table.ids[side]])


class Items:
    """The items of one side, `images` or `captions`: in the table's order, or found by the table's ids."""

    def __init__(self, table: NegativeTable, side: str, items: Sequence[Any], ids: Sequence[str] | None) -> None:
        self._items, self._places = items, find_places(table, side, items, ids)

    def __getitem__(self, rows: np.ndarray) -> list[Any]:
        return [self._items[place] for place in self._places[rows].tolist()]


class PairRows:
    """Find the rows of pairs in a list of all true pairs."""

    def __init__(self, pairs: Pairs, captions: int) -> None:
        self._captions, self._keys = captions, pair_keys(pairs[:, 0], pairs[:, 1], captions)
        self._order = np.argsort(self._keys)

    def __call__(self, pairs: np.ndarray) -> np.ndarray:
        keys = pair_keys(pairs[:, 0], pairs[:, 1], self._captions)
        return np.asarray(self._order[np.searchsorted(self._keys, keys, sorter=self._order)])


def processes() -> Processes:
    """Return the processes that train together."""
    group = torch.distributed
    if not (group.is_available() and group.is_initialized()):
        return ALONE
    return Processes(group.get_rank(), group.get_world_size())


def gather(part: Tensor) -> Tensor:
    """Concatenate the rows of all processes, with the gradients of all."""
    group = replace(processes(), device=part.device)
    return group.gather(part, group.count * len(part))


def require_same_draws(table: NegativeTable | ScreenedTable, names: Sequence[Any], *options: Any) -> None:
    """Refuse to train if the table, names of data or options differ between processes; all must call this."""
    if (group := processes()).are_several:
        bare, view, _ = table_parts(table)
        screen = None if view is None else dict(view.manifest)
        hashed = {"table": [bare.sha256, screen], "texts or pictures": names, "options": options}
        group.check_same({name: digest(str(one)) for name, one in hashed.items()})


def group_similarities(
    images: Float[Tensor, "pairs D"],
    captions: Float[Tensor, "pairs D"],
    image_rows: Int[Tensor, " pairs"],
    is_positive: Bool[Tensor, "batch batch"],
    excluded: Bool[np.ndarray, "2 batch columns"] | None = None,
) -> Similarities:
    """Compare the pairs of a batch in groups: true pairs, offline negatives, companions; or several negatives."""
    size, offline = len(is_positive), None
    if excluded is not None:
        offline = offline_similarities(images, captions, excluded=excluded)
    elif len(image_rows) > size:
        offline = offline_similarities(images, captions, image_rows, companions=len(image_rows) == 3 * size)
    return Similarities(images[:size] @ captions[:size].T, is_positive, offline)


class TaughtLoss(nn.Module):
    """Base of losses with a term that distils teachers' scores."""

    def __init__(
        self,
        loss: nn.Module,
        table: NegativeTable | ScreenedTable,
        teachers: Sequence[tuple[Any, Any]],
        *,
        weight: float = 0.3,
        image_ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.loss: Any = loss
        self._weight, self._options = weight, options
        batch_distillation(torch.zeros(1, 1), torch.zeros(1, 1), **options)  # refuses wrong ones before a step
        self._table, self._teachers = table_parts(table).table, []
        for images, captions in teachers:
            if images.ndim != 2 or images.shape[1:] != captions.shape[1:]:
                shapes = f"{tuple(images.shape)} and {tuple(captions.shape)}"
                raise ValueError(f"a teacher's vectors have the shapes {shapes}; give two matrices of one width.")
            sides = ("images", images, image_ids), ("captions", captions, caption_ids)
            self._teachers.append([(side[1], find_places(self._table, *side)) for side in sides])
        if not self._teachers:
            raise ValueError("teachers is empty; give the vectors (images, captions) of at least one teacher.")

    def distillation_term(self, vectors: Sequence[Tensor], rows: Sequence[Tensor]) -> Float[Tensor, ""]:
        """Compute the term on the pairs of all processes: vectors (pairs, D) and rows of images and of captions."""
        images, captions = (F.normalize(gather(side.float()), dim=1) for side in vectors)
        numbers, scores = [gather(side).cpu().numpy() for side in rows], []
        with torch.autocast(images.device.type, enabled=False):
            for teacher in self._teachers:
                taken = [side[places[own]] for (side, places), own in zip(teacher, numbers, strict=True)]
                theirs = [F.normalize(torch.as_tensor(side).to(images), dim=1) for side in taken]
                scores.append(theirs[0] @ theirs[1].T)
            term = batch_distillation(images @ captions.T, torch.stack(scores), **self._options)
        return self._weight * term / len(images)
