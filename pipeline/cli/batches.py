"""`aoq batches`: the pairs of an epoch in batches of each other's hard negatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from rich.table import Table

from aoq.pipeline.cli.options import COUNT, PATH, as_json, with_default
from aoq.pipeline.cli.output import Console, echo, echo_json
from aoq.pipeline.tables.pairs import SIDES

if TYPE_CHECKING:
    from aoq.pipeline.batches.lists import MeetingLists
    from aoq.pipeline.batches.statistics import Meetings
    from aoq.pipeline.tables.screens.screened import ScreenedTable
    from aoq.pipeline.tables.table import NegativeTable

Batches = Sequence[np.ndarray]


def _ranks(_: click.Context, option: click.Parameter, given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    start, _colon, stop = given.partition(":")
    if not (start.isdecimal() and stop.isdecimal()):
        raise click.BadParameter(f"{given!r} is not START:STOP, such as 30:130", param=option)
    return int(start), int(stop)


@click.command()
@click.argument("table", type=PATH)
@click.argument("output", type=PATH)
@click.option("--batch-size", required=True, type=click.IntRange(min=2), help="Pairs in a batch.")
@with_default("--epochs", default=1, type=COUNT, help="How many epochs to write.")
@with_default("--seed", default=0, type=click.IntRange(min=0))
@with_default("--kind", default="mined", type=click.Choice(["mined", "triples", "random"]))
@click.option("--ranks", callback=_ranks, help="Ranks START:STOP of captions that should meet; default: all listed.")
@with_default("--community", default=32, type=click.IntRange(min=2), help="Pairs that are close to each other.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; what its rules suspect does not meet.")
@as_json
def batches(
    table: Path,
    output: Path,
    batch_size: int,
    epochs: int,
    seed: int,
    kind: str,
    ranks: tuple[int, int] | None,
    community: int,
    view: Path | None,
    as_json: bool,
) -> None:
    """Put pairs into batches of hard negatives.

    The true pairs of the negative table in the folder TABLE go to the new folder OUTPUT: epoch-000.parquet and so on,
    a row a pair, with the columns batch, image_id and caption_id (rows of the data), and image and caption where the
    table has ids. Each epoch has every pair once, in other batches. Triples are pairs, a negative of each, and its
    companion: of these a third of the pairs is drawn. Shows what in-batch negatives are beside those at random.
    """
    from aoq.pipeline.batches.files import write_batches_manifest, write_epoch
    from aoq.pipeline.batches.lists import meeting_lists
    from aoq.pipeline.batches.statistics import meetings_of
    from aoq.pipeline.tables.screens.screened import ScreenedTable
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.tables.writing import made_whole

    read = read_table(table)
    if read.positives is None:
        raise ValueError(f"{table} does not say which pairs are true; mine it with --pairs or --per-image.")
    seen = None if view is None else read_view(view, read.manifest)
    lists = meeting_lists(read, read.positives, view=seen, ranks=ranks)
    screened = read if seen is None else ScreenedTable(read, seen)
    make = _maker(kind, screened, lists, batch_size, seed, community)
    with made_whole(output) as made:
        made.mkdir()
        epoch_0 = make(0)
        for epoch in range(epochs):
            write_epoch(made, epoch, make(epoch) if epoch else epoch_0, read.ids)
        at_random = _maker("random", screened, lists, batch_size, seed, community)(0)
        met = {
            name: meetings_of(read, lists, found, np.random.default_rng(seed))
            for name, found in (("these", epoch_0), ("random", at_random))
        }
        shown = {name: asdict(one) for name, one in met.items()}
        options = {"kind": kind, "batch_size": batch_size, "seed": seed, "ranks": ranks, "community": community}
        said = {**options, "table_sha256": read.sha256, "view_sha256": seen and seen.manifest["table_sha256"]}
        write_batches_manifest(made, {**said, "met": shown})
    if as_json:
        echo_json(shown)
    else:
        echo(f"{output}: {epochs} epoch{'s' if epochs > 1 else ''} of {len(epoch_0):,} batches")
        _show(met)


def _maker(
    kind: str,
    table: NegativeTable | ScreenedTable,
    lists: MeetingLists,
    batch_size: int,
    seed: int,
    community: int,
) -> Callable[[int], Batches]:
    """What makes the batches of an epoch, pairs (image, caption)."""
    from aoq.pipeline.batches.order import MinedBatches
    from aoq.pipeline.data.batches import epoch_order
    from aoq.pipeline.training.batch_sampler import BatchSampler

    if kind == "triples":
        sampler = BatchSampler(table, batch_size=batch_size, seed=seed, companions="anchors")
        return lambda epoch: [sampler.batch(epoch, step) for step in range(len(sampler))]
    mined = MinedBatches(lists, batch_size, seed, community)

    def make(epoch: int) -> Batches:
        order = mined.order(epoch) if kind == "mined" else epoch_order(len(lists.pairs), seed=seed, epoch=epoch)
        return np.split(lists.pairs[order], range(batch_size, len(order), batch_size))

    return make


def _show(met: Mapping[str, Meetings]) -> None:
    rows = Table("", *met, box=None, pad_edge=False)
    first = next(iter(met.values()))
    for direction in first.directions:
        anchor, candidate = (side.removesuffix("s") for side in SIDES[direction])
        of = [one.directions[direction] for one in met.values()]
        ranks = (f"{one.hardest_rank:.0f}" if one.none_listed < 0.5 else "not listed" for one in of)
        rows.add_row(f"{anchor}s: rank of the batch's hardest {candidate}, median", *ranks)
        rows.add_row(f"  listed {candidate}s in the batch", *(f"{one.listed:.2f}" for one in of))
        rows.add_row("  that meet none", *(f"{one.none_listed:.1%}" for one in of))
    rows.add_row("matches, or suspected ones, in a batch", *(f"{one.may_match:.2f}" for one in met.values()))
    Console().print(rows)
