"""Batches with offline negatives for any PyTorch trainer: `DataLoader(dataset, batch_sampler=BatchSampler(...))`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import index
from typing import Any, SupportsIndex

import numpy as np
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from aoq.pipeline.batches.lists import meeting_lists
from aoq.pipeline.batches.order import COMMUNITY, mined_order
from aoq.pipeline.config.losses import Offline
from aoq.pipeline.data.batches import epoch_order, step_rng
from aoq.pipeline.reading import host_array
from aoq.pipeline.tables.pairs import Pairs
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable, table_parts
from aoq.pipeline.training.drawable import Drawable, drawable_lists
from aoq.pipeline.training.sampler import WHOLE_LISTS, Sampler

_OFFLINE: dict[str | None, Offline] = {None: "quintuplet", "anchors": "triples", "omit": "anchors"}
"""Draws for each value of `companions`."""


class BatchSampler:
    """Batches of pairs and their offline negatives, each an (N, 2) int64 array of (image row, caption row).

    The rows are in groups of B pairs. By default B = batch_size and N = 3 B, for the quintuplet losses:

        [0, B)     anchors      (i, t): a matched pair
        [B, 2B)    offline      (i_off, t_off): a negative image of t, a negative caption of i
        [2B, 3B)   companions   (i_own, t_own): an image of t_off, a caption of i_off

    With `companions="anchors"` B = batch_size // 3 and N = 3 B, all of them matched pairs for the same losses with
    companions as anchors: (i, t), (i_own, t_off), (i_off, t_own). An epoch then draws a third of the pairs. With
    `companions="omit"` N = 2 B: anchors and offline negatives alone, for losses without derived pairs. By default each
    pair is an anchor once per epoch. `negatives=K` draws K of them, N = (1 + K) B, each group from another part of the
    lists; `excluded` says which are not negatives of which anchors, and `aoq.offline_similarities` takes them all.

    A `DataLoader(dataset, batch_sampler=sampler)` reads `dataset[row]` for each (image, caption) of a batch;
    `DataLoader(dataset, sampler=sampler, batch_size=None)` reads `dataset[batch]` for the whole (N, 2) array.

    A batch is a function of (seed, epoch, step) alone. Each new iteration is the next epoch, from 0, or the one that
    `set_epoch` names. With `world_size` processes a step draws `batch_size * world_size` pairs, the same in each
    process, and process `rank` gets its slice of each group; a last batch that does not fill all slices evenly is cut
    to one that does, and left out if a process would see fewer than two pairs (or no triple).

    The pairs are the table's true ones, of which an image or a caption may have several, or those of `image_of`
    (captions,), the image row of each caption (-1: none); `is_positive` says which rows of a batch match. In one set a
    pair is an anchor in both orders. A row drawn as a negative needs its own positive, unless companions are omitted.

    With `batches="mined"` the anchors of a batch are each other's hard negatives (`aoq.pipeline.batches.order`), in
    communities of about `community` pairs. Neighbours come from the ranks `batch_ranks` of captions, [start, stop) from
    0, by default all; suspected pairs are moved apart. Each of several processes has such a batch. With
    `offline=False` the table only shapes the batches: N = B anchors, for losses on pairs.

    Flagged negatives of a screened table (`table.screen(…)`) are not drawn, unless all of a list are flagged. With
    `suspected="positive"` an anchor's image is drawn among its caption's own and those found to match.
    `i2t_weights` and `t2i_weights` have the shape of the table's lists and give each negative's likelihood relative to
    its list, 0 for never; `h_captions` and `h_images` narrow draws to the first ranks.
    """

    def __init__(
        self,
        table: NegativeTable | ScreenedTable,
        *,
        batch_size: SupportsIndex,
        image_of: Int[np.ndarray, " captions"] | Int[Tensor, " captions"] | None = None,
        seed: SupportsIndex = 0,
        rank: SupportsIndex = 0,
        world_size: SupportsIndex = 1,
        companions: str | None = None,
        drop_last: bool = False,
        h_captions: int | None = None,
        h_images: int | None = None,
        i2t_weights: Float[np.ndarray, "images h"] | Float[Tensor, "images h"] | None = None,
        t2i_weights: Float[np.ndarray, "anchors g"] | Float[Tensor, "anchors g"] | None = None,
        strategy: str = "uniform",
        resample: bool = True,
        windows: Sequence[Sequence[float]] = WHOLE_LISTS,
        batches: str | None = None,
        batch_ranks: tuple[int, int] | None = None,
        community: int = COMMUNITY,
        offline: bool = True,
        negatives: SupportsIndex | None = None,
        shared: bool = True,
    ) -> None:
        batch_size, seed, rank, world_size = map(index, (batch_size, seed, rank, world_size))
        if not offline and (batches is None or companions is not None):
            raise ValueError('offline=False draws only mined batches; set batches="mined", and no companions.')
        if companions not in _OFFLINE:
            raise ValueError(f'companions is {companions!r}; it must be "anchors", "omit" or None.')
        if negatives is None and not shared:
            raise ValueError("shared needs a number of `negatives`; give one, or leave out shared.")
        if negatives is not None and strategy == "normal":
            raise ValueError(
                'strategy = "normal" draws one negative of each list; leave out `negatives` or `strategy`.'
            )
        if negatives is not None and (index(negatives) < 1 or companions != "omit"):
            raise ValueError(
                f"negatives = {negatives} and companions = {companions!r}; several negatives have no companions: give "
                '1 or more, and companions="omit".'
            )
        if batches not in (None, "mined"):
            raise ValueError(f'batches is {batches!r}; it must be "mined" or None.')
        if batches is None and batch_ranks is not None:
            raise ValueError('batch_ranks belong to batches="mined"; give both, or neither.')
        least = 6 if companions == "anchors" else 2
        if batch_size < least:
            raise ValueError(f"batch_size = {batch_size} leaves no negative in a batch; give at least {least}.")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank = {rank} is not one of the {world_size} processes; ranks count from 0.")
        bare, view, _ = parts = table_parts(table)
        positives = bare.positives if image_of is None else host_array(image_of, "image_of").astype(np.int64)
        if positives is None:
            raise ValueError("the table does not say which pairs are true; give image_of, each caption's image row.")
        i2t = drawable_lists(table, "i2t", h=h_captions, weights=i2t_weights)
        t2i = drawable_lists(table, "t2i", h=h_images, weights=t2i_weights)
        self._offline: Offline = _OFFLINE[companions] if offline else "none"
        self._groups = 1 if negatives is None else 1 + index(negatives)
        self._sampler = Sampler(
            i2t,
            t2i,
            positives,
            strategy=strategy,
            resample=resample,
            windows=windows,
            one_set=bare.is_one_set,
            negatives=None if negatives is None else index(negatives),
            shared=shared,
            matches=parts.matches,
            highest_scores=parts.highest_scores,
        )
        self._has_companions = self._offline in ("quintuplet", "triples")
        if self._has_companions:
            _require_companions(self.pairs, i2t, t2i)
        self._seed, self._rank, self._world_size = seed, rank, world_size
        self._drawn = batch_size * world_size
        self._kind: dict[str, Any] = {"seed": seed, "pairs_per_step": self._drawn}
        self._mined = None
        if batches == "mined":
            lists = meeting_lists(bare, self.pairs, view=view, ranks=batch_ranks)
            self._mined = partial(mined_order, lists, batch_size, seed=seed, community=community)
            self._kind["batches"] = f"mined, ranks {batch_ranks or 'all'}, community {community}"
        self._order = -1, np.empty(0, np.int32)  # of the epoch last drawn from
        full, rest = divmod(len(self.pairs), self._drawn)
        fewest = world_size * (3 if companions == "anchors" and world_size > 1 else 2)
        self._steps = full + (rest >= fewest and not drop_last)
        if not self._steps:
            raise ValueError(
                f"{len(self.pairs)} pairs cannot fill a batch of {batch_size} in each of {world_size} processes; lower "
                "batch_size."
            )
        self._epoch, self._step, self._has_begun = 0, 0, False

    @property
    def pairs(self) -> Pairs:
        """Pairs that are anchors, rows (image, caption)."""
        return self._sampler.pairs

    def draw_each(
        self, pairs: Int[np.ndarray, " some"] | Int[Tensor, " some"], epoch: int
    ) -> Int64[np.ndarray, "groups some 2"]:
        """Draw for some of the pairs, each as a function of (seed, epoch, pair) alone.

        The groups are anchors, offline negatives and, unless companions are omitted, companions.
        """
        drawn = []
        for pair in host_array(pairs, "pairs").astype(np.int32):
            rng = step_rng(seed=self._seed, epoch=epoch, step=int(pair))
            offline: Offline = "quintuplet" if self._has_companions else "anchors"
            drawn.append(self._sampler.draw_for(offline, pair[None], rng, epoch).groups)
        return np.concatenate(drawn, axis=1).astype(np.int64)

    def __len__(self) -> int:
        """Number of batches in a whole epoch; the same in every process."""
        return self._steps

    def __iter__(self) -> Iterator[Int64[np.ndarray, "rows 2"]]:
        """Iterate over the rest of the epoch that was set or loaded, or else over the next one."""
        if self._has_begun:  # this runs at the first batch: a DataLoader may ask for iterators that it never uses
            self._epoch, self._step = self._epoch + 1, 0
        self._has_begun = True
        epoch = self._epoch
        for step in range(self._step, self._steps):
            self._step = step + 1
            yield self.batch(epoch, step)

    def batch(self, epoch: int, step: int) -> Int64[np.ndarray, "rows 2"]:
        """Return any batch, without advancing."""
        if self._order[0] != epoch:
            plain = epoch_order(len(self.pairs), seed=self._seed, epoch=epoch)
            self._order = epoch, plain if self._mined is None else self._mined(epoch)
        rows = self._order[1][step * self._drawn :][: self._drawn]
        rng = step_rng(seed=self._seed, epoch=epoch, step=step)
        groups = self._sampler.draw_for(self._offline, rows, rng, epoch).groups
        if self._offline == "triples":
            groups = groups.reshape(3, -1, 2)
        size = groups.shape[1] // self._world_size
        return groups[:, self._rank * size :][:, :size].reshape(-1, 2).astype(np.int64)

    def is_positive(self, batch: Int[np.ndarray, "rows 2"] | Int[Tensor, "rows 2"]) -> Bool[np.ndarray, "rows rows"]:
        """Mark where the image of one row and the caption of another are a true pair.

        In a table of two sides where each caption has one image, `aoq.positive_pairs` does the same.
        """
        rows = host_array(batch, "batch")
        return self._sampler.are_pairs(rows[:, :1], rows[None, :, 1])

    def excluded(self, batch: Int[np.ndarray, "rows 2"] | Int[Tensor, "rows 2"]) -> Bool[np.ndarray, "2 B columns"]:
        """Mark drawn captions that do not count as negatives of an image (0), and images likewise of a caption (1).

        There is a column per drawn pair of the batch or, if not `shared`, per group. Marks are for repetitions of a
        short list and, among those drawn for other anchors, for true pairs and suspected pairs that are not drawn.

        Raises:
            ValueError: if the sampler has no `negatives`, or the rows are not a batch of it.
        """
        rows = host_array(batch, "batch")
        if self._groups == 1:
            raise ValueError("this sampler draws one negative of each list; set `negatives` to draw several.")
        if len(rows) % self._groups or not len(rows):
            raise ValueError(f"{len(rows)} rows are not anchors with several `negatives`; give this sampler's batch.")
        return self._sampler.excluded(rows.reshape(self._groups, -1, 2))

    def set_epoch(self, epoch: SupportsIndex) -> None:
        """Iterate over this epoch next: from its start, or from the position that `load_state_dict` set."""
        epoch = index(epoch)
        if self._has_begun or epoch != self._epoch:
            self._epoch, self._step, self._has_begun = epoch, 0, False

    def state_dict(self, step: SupportsIndex | None = None) -> dict[str, Any]:
        """Return the position to continue from: after all drawn batches, or after the first `step` of this epoch.

        With workers a DataLoader draws batches ahead of the training: then give the number that it has trained on.
        """
        done = self._step if step is None else index(step)
        epoch, done = (self._epoch + 1, 0) if done == self._steps else (self._epoch, done)
        return {"epoch": epoch, "step": done, **self._kind}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the next iteration after the last batch of the state; later ones are the following epochs."""
        if (theirs := {name: value for name, value in state.items() if name not in ("epoch", "step")}) != self._kind:
            raise ValueError(
                f"the state belongs to other batches: {theirs}, here {self._kind}; keep the seed, "
                "batch_size * world_size, and how batches are made."
            )
        self._epoch, self._step, self._has_begun = state["epoch"], state["step"], False


def _require_companions(pairs: Pairs, i2t: Drawable, t2i: Drawable) -> None:
    """Refuse lists from which a row without a positive could be drawn."""
    for column, own, other, (noun, missing) in (
        (pairs[:, 0], i2t, t2i, ("images", "caption")),
        (pairs[:, 1], t2i, i2t, ("captions", "image")),
    ):
        is_alone = np.bincount(column, minlength=len(own.ids)) == 0
        if is_alone[other.ids[other.may_draw()]].any():
            alone = np.flatnonzero(is_alone)
            raise ValueError(
                f"{len(alone)} {noun} have no {missing}, the first is {alone[0]}: as offline negatives they have no "
                'companion; mine the table without them, give them a weight of 0, or set companions="omit".'
            )
