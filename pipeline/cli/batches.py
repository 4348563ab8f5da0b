"""`aoq batches`: the pairs of an epoch in batches of each other's hard negatives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
from rich.table import Table

from aoq.pipeline.cli.looking import Looked, takes_tables, texts_of
from aoq.pipeline.cli.options import (
    COUNT,
    PATH,
    as_json,
    data,
    image_root,
    roots,
    split,
    texts_or_captions,
    with_default,
)
from aoq.pipeline.cli.output import Console, counted, echo, echo_json
from aoq.pipeline.digests import file_sha256
from aoq.pipeline.tables.pairs import SIDES

if TYPE_CHECKING:
    from aoq.pipeline.batches.lists import MeetingLists
    from aoq.pipeline.batches.statistics import Meetings
    from aoq.pipeline.data.folder import Split
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
@takes_tables("table")
@click.argument("output", type=PATH)
@click.option("--batch-size", required=True, type=click.IntRange(min=2), help="Pairs in a batch.")
@with_default("--epochs", default=1, type=COUNT, help="How many epochs to write.")
@with_default("--seed", default=0, type=click.IntRange(min=0))
@with_default("--kind", default="mined", type=click.Choice(["mined", "triples", "random"]))
@click.option("--ranks", callback=_ranks, help="START:STOP: link captions of these ranks; default: all listed.")
@with_default("--community", default=32, type=click.IntRange(min=2), help="Number of pairs close to each other.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; pairs that it flags share no batch.")
@click.option("--write-shards", is_flag=True, help="Write webdataset's shards as well, with pictures and captions.")
@data
@split
@texts_or_captions
@image_root
@as_json
@roots
def batches(
    table: Looked,
    output: Path,
    batch_size: int,
    epochs: int,
    seed: int,
    kind: str,
    ranks: tuple[int, int] | None,
    community: int,
    view: Path | None,
    write_shards: bool,
    data: Path | None,
    split: str,
    texts: Path | None,
    image_root: Path | None,
    as_json: bool,
) -> None:
    """Write batches of hard negatives.

    TABLE is an experiment or a table's folder. Its true pairs go to the new folder OUTPUT: epoch-000.parquet and so on,
    with a row per pair. The columns are batch, image_id and caption_id (rows of the data), and image and caption if the
    table has ids. Each epoch has every pair once, in other batches. With --kind triples, a third of the pairs is drawn;
    a negative of each, and its companion, fill the batch. In-batch negatives are shown beside those of random batches.

    webdataset's shards, epoch-000/000000.tar and so on, have the samples in this order; read them without shuffling.
    Pictures and captions come from the experiment, from a dataset folder (--data), or from --image-root and --texts.
    --data is compared with the table, with shards or without: other data, or another order, is refused.
    """
    from aoq.pipeline.batches import files
    from aoq.pipeline.batches.files import write_batches_manifest, write_epoch
    from aoq.pipeline.batches.lists import meeting_lists
    from aoq.pipeline.batches.statistics import meetings_of
    from aoq.pipeline.tables.screens.screened import ScreenedTable
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.tables.writing import made_whole

    read = read_table(table.folder)
    if read.positives is None:
        raise ValueError(f"{table.folder} does not say which pairs are true; mine it with --pairs or --per-image.")
    opened = table.captioned(data, split) if data is not None or write_shards else None
    seen = None if view is None else read_view(view, read.manifest)
    lists = meeting_lists(read, read.positives, view=seen, ranks=ranks)
    screened = read if seen is None else ScreenedTable(read, seen)
    make = _maker(kind, screened, lists, batch_size, seed, community)
    with made_whole(output) as made:
        sources = None
        if write_shards:
            sources = _sources(read, opened, table.data_folder(data), texts, image_root, made.parent / "pictures")
        made.mkdir()
        epoch_0 = make(0)
        for epoch in range(epochs):
            found = make(epoch) if epoch else epoch_0
            write_epoch(made, epoch, found, read.ids)
            if sources is not None:
                files.write_shards(made / f"epoch-{epoch:03d}", found, *sources)
        at_random = _maker("random", screened, lists, batch_size, seed, community)(0)
        met = {
            name: meetings_of(read, lists, found, np.random.default_rng(seed))
            for name, found in (("these", epoch_0), ("random", at_random))
        }
        shown = {name: asdict(one) for name, one in met.items()}
        options = {"kind": kind, "batch_size": batch_size, "seed": seed, "ranks": ranks, "community": community}
        hashes = view and {direction: file_sha256(view / f"{direction}.parquet") for direction in read.directions}
        said = {**options, "table_sha256": read.sha256, "view_sha256": hashes}
        write_batches_manifest(made, {**said, "met": shown})
    if as_json:
        echo_json(shown)
    else:
        echo(f"{output}: {counted(epochs, 'epoch')} of {counted(len(epoch_0), 'batch', 'batches')}")
        _show(met)


def _maker(
    kind: str,
    table: NegativeTable | ScreenedTable,
    lists: MeetingLists,
    batch_size: int,
    seed: int,
    community: int,
) -> Callable[[int], Batches]:
    """A function from an epoch to its batches of pairs (image, caption)."""
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


def _sources(
    table: NegativeTable,
    opened: Split | None,
    data: Path | None,
    captions: Path | None,
    image_root: Path | None,
    unpacked: Path,
) -> tuple[Sequence[str], Sequence[str]]:
    """The file of each picture, and the captions."""
    from aoq.pipeline.produce.photographs import photograph_files
    from aoq.pipeline.tables.exchange.pictures import find_pictures

    if table.is_one_set:
        raise ValueError(
            "shards have pictures with their captions, and the table is of one set; write no shards of it."
        )
    ids: Sequence[str] | None = table.ids.get("images")
    if opened is not None:
        ids = opened.ids
    elif captions is None or image_root is None:
        raise ValueError("--write-shards needs pictures and captions; give --data, or --image-root and --texts.")
    texts = texts_of(captions, opened) or ()
    for what, given, count in (("captions", texts, len(table.t2i)), ("image ids", ids, len(table.i2t))):
        if given is not None and len(given) != count:
            raise ValueError(f"{len(given)} {what} are given, and the table is of {count}; they are of other data.")
    files = None
    if image_root is None and data is not None and opened is not None:
        files = photograph_files(data, opened.name, len(table.i2t), unpacked)
    if files is not None:
        return files, texts
    if image_root is None:
        where = f"{data} names no pictures, as `aoq prepare` does" if data else "a part of a split names no pictures"
        raise ValueError(f"{where}; give --image-root, where they lie.")
    return find_pictures(image_root, ids if ids is not None else [str(row) for row in range(len(table.i2t))]), texts


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
    Console().print_table(rows)
