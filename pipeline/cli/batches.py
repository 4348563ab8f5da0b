"""`aoq batches`: the pairs of each epoch in batches of mutual hard negatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from aoq.pipeline.batches.lists import MeetingLists, measure_meetings, meeting_lists, write_batches
from aoq.pipeline.cli.options import PATH, POSITIVE, with_default
from aoq.pipeline.cli.output import counted, echo, echo_json, is_typed, show_rows
from aoq.pipeline.cli.table_options import NamedTable, row_options, takes_tables
from aoq.pipeline.files import file_sha256
from aoq.pipeline.tables.contents import TableRows
from aoq.pipeline.tables.pairs import SIDES
from aoq.pipeline.tables.table import NegativeTable, ScreenedTable
from aoq.pipeline.tables.writing import made_whole


def _parse_ranks(_: click.Context, option: click.Parameter, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, _colon, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal()):
        raise click.BadParameter(f"{text!r} is not START:STOP, such as 30:130", param=option)
    return int(start), int(stop)


@click.command("batches")
@click.option("--batch-size", required=True, type=click.IntRange(min=2), help="Pairs in a batch.")
@with_default("--epochs", default=1, type=POSITIVE, help="How many epochs to write.")
@with_default("--seed", default=0, type=click.IntRange(min=0))
@with_default("--kind", default="mined", type=click.Choice(["mined", "triples", "random"]))
@click.option("--ranks", callback=_parse_ranks, help="START:STOP: link captions of these ranks; default: all.")
@with_default("--community", default=32, type=click.IntRange(min=2), help="Pairs per community of hard negatives.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; pairs that it flags are moved apart.")
@click.option("--write-shards", is_flag=True, help="Also write webdataset's shards, with pictures and captions.")
@row_options("data", "split", "texts", "image_root", older_texts=("--captions",))
@takes_tables("table", json=True)
@click.argument("output", type=PATH)
def batches_command(table: NamedTable, output: Path, view: Path | None, as_json: bool, **options: Any) -> None:
    """Write batches of hard negatives.

    Write the true pairs of TABLE to the new folder OUTPUT: epoch-000.parquet and so on, with the columns batch,
    image_id and caption_id (rows of the data), and ids if the table has any. Each epoch has every pair once. With
    --kind triples a third of the pairs are drawn; a negative of each, and its companion, fill the batch. The output
    compares in-batch negatives with those of random batches.

    Read webdataset's shards, epoch-000/000000.tar and so on, without shuffling. Pictures and captions come from the
    experiment, from a dataset folder (--data), or from --image-root and --texts.
    """
    kind = options["kind"]
    if kind != "mined" and (idle := [name for name in ("ranks", "community") if is_typed(name)]):
        raise click.UsageError(f"--{idle[0]} has no effect on {kind} batches; leave it out")
    if kind == "random" and view is not None:
        raise click.UsageError("--view has no effect on random batches; leave it out")
    read = table.read()
    epochs, with_shards = options.pop("epochs"), options.pop("write_shards")
    _ = table.files.data and table.split  # refuses data that are not the table's
    screen = table.read_view(view)
    lists = meeting_lists(read, read.true_pairs, view=screen, ranks=options["ranks"])
    ids = {**read.ids, "captions": read.ids["images"]} if read.is_one_set and read.ids else read.ids
    source = read if screen is None else ScreenedTable(read, screen)
    draw, draw_randomly = (_batches(kind, source, lists, options) for kind in (kind, "random"))
    with made_whole(output) as folder:
        samples = _shard_samples(table, read, folder.parent) if with_shards else None
        first = draw(0)
        met = {
            name: measure_meetings(read, lists, batches, np.random.default_rng(options["seed"]))
            for name, batches in (("these", first), ("random", draw_randomly(0)))
        }
        shown = {name: asdict(one) for name, one in met.items()}
        hashes = view and {direction: file_sha256(view / f"{direction}.parquet") for direction in read.directions}
        sources = {"table_sha256": read.sha256, "view_sha256": hashes}
        drawn = (draw(epoch) if epoch else first for epoch in range(epochs))
        write_batches(folder, drawn, ids=ids, samples=samples, about={**options, **sources, "met": shown})
    if as_json:
        echo_json(shown)
    else:
        echo(f"{output}: {counted(epochs, 'epoch')} of {counted(len(first), 'batch', 'batches')}")
        _show(met)


def _batches(
    kind: str, table: NegativeTable | ScreenedTable, lists: MeetingLists, options: Mapping[str, Any]
) -> Callable[[int], Sequence[np.ndarray]]:
    """Return a function from an epoch to its batches of pairs (image, caption)."""
    from aoq.pipeline.batches.order import mined_order
    from aoq.pipeline.data.batches import epoch_order
    from aoq.pipeline.training.batch_sampler import BatchSampler

    batch_size, seed = options["batch_size"], options["seed"]
    if kind == "triples":
        if batch_size % 3:
            raise ValueError(f"--batch-size {batch_size} does not divide into triples; give a multiple of 3.")
        sampler = BatchSampler(table, batch_size=batch_size, seed=seed, companions="anchors")
        return lambda epoch: [sampler.batch(epoch, step) for step in range(len(sampler))]
    mined = partial(mined_order, lists, batch_size, seed=seed, community=options["community"])

    def draw(epoch: int) -> Sequence[np.ndarray]:
        order = mined(epoch) if kind == "mined" else epoch_order(len(lists.pairs), seed=seed, epoch=epoch)
        return np.split(lists.pairs[order], range(batch_size, len(order), batch_size))

    return draw


def _shard_samples(table: NamedTable, read: NegativeTable, scratch: Path) -> tuple[Sequence[str], Sequence[str]]:
    """Return the file of each picture, and the captions."""
    if read.is_one_set:
        raise ValueError("shards hold images with their captions, but the table has one set; leave out --write-shards.")
    captions, image_ids, _ = table.names
    if table.split is None and (captions is None or table.files.image_root is None):
        raise ValueError("--write-shards needs pictures and captions; give --data, or --image-root and --texts.")
    rows = TableRows(read, captions, image_ids)  # refuses names that are not one per row
    if table.files.image_root is not None:
        from aoq.pipeline.tables.exchange.outgoing import find_pictures  # late: it loads torch

        return find_pictures(table.files.image_root, rows.ids), rows.captions
    if pictures := table.photographs(scratch / "pictures"):
        return pictures, rows.captions
    where = table.data_folder or "a part of a split"
    raise ValueError(f"{where} does not list its pictures; give their folder as --image-root.")


def _show(met: Mapping[str, Any]) -> None:
    rows: list[tuple[str, ...]] = []
    for direction in met["these"].directions:
        anchor, candidate = (side.removesuffix("s") for side in SIDES[direction])
        figures = [one.directions[direction] for one in met.values()]
        ranks = (f"{one.hardest_rank:.0f}" if one.none_listed < 0.5 else "not listed" for one in figures)
        rows += [
            (f"{anchor}s: rank of the batch's hardest {candidate}, median", *ranks),
            (f"  listed {candidate}s in the batch", *(f"{one.listed:.2f}" for one in figures)),
            ("  with none of them", *(f"{one.none_listed:.1%}" for one in figures)),
        ]
    rows.append(("matches, or suspected ones, in a batch", *(f"{one.may_match:.2f}" for one in met.values())))
    show_rows(("", *met), rows)
