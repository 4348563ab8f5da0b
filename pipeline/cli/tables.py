"""`aoq inspect`, `audit`, `stats` and `diff`: one anchor's list, and tables as a whole."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np

from aoq.pipeline.cli.options import POSITIVE, with_default
from aoq.pipeline.cli.output import command_line, counted, echo, echo_json, echo_next, say, show_rows, styled
from aoq.pipeline.cli.screen import show_counts
from aoq.pipeline.cli.table_options import NamedTable, own_view, row_options, takes_tables
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.search.problem import OPPOSITE, Direction
from aoq.pipeline.tables import statistics
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.card import describe_guarantee
from aoq.pipeline.tables.contents import TableRows
from aoq.pipeline.tables.files import corrects_hubs, read_manifest, search_facts, table_directions

if TYPE_CHECKING:
    from aoq.pipeline.tables.inspection import Inspection
    from aoq.pipeline.tables.table import NegativeTable


@click.command("inspect")
@click.option("--image", help="An image, by row or by id; in one set, an item.")
@click.option("--caption", help="A caption, by row (0 is the first line) or by id.")
@with_default("--top", default=10, type=POSITIVE, help="Number of negatives.")
@own_view
@click.option(
    "--only",
    type=click.Choice(["left", *RULES]),
    metavar="RULE",
    help="Show only negatives that this rule of the view flags, such as same_text; `left`: those that none flags.",
)
@row_options("texts", "image_ids", "caption_ids")
@takes_tables("table", json=True)
def inspect_command(
    table: NamedTable,
    image: str | None,
    caption: str | None,
    top: int,
    view: Path | None,
    only: str | None,
    as_json: bool,
) -> None:
    """Show an anchor's hardest negatives.

    Show the list of an image or a caption, and its own positives. Texts and ids come from the experiment; for a folder
    they come from the options, or the ids from files beside it.
    """
    from aoq.pipeline.tables.inspection import inspect_anchor

    if (image is None) == (caption is None):
        raise click.UsageError("name one anchor: --image ROW_OR_ID or --caption ROW_OR_ID")
    read = table.read()
    if read.is_one_set and caption is not None:
        raise click.UsageError("a table of one set has only items; name one by --image ROW_OR_ID")
    known = TableRows(read, *table.names)
    screened = table.read_view(view, or_own=True)
    if only and screened is None:
        raise ValueError("--only needs a view: the experiment's own screen, if it was made, or --view FOLDER")
    if only in RULES and screened is not None and only not in screened.manifest["screen"]:
        used = [rule for rule in RULES if rule in screened.manifest["screen"]]
        raise ValueError(f"--only {only}: the view does not use this rule; it uses {used}.")
    direction: Direction = "i2t" if caption is None else "t2i"
    if image is not None:
        row = _find_row("image", image, known.ids, len(read.i2t))
    else:
        row = _find_row("caption", str(caption), known.named, len(read.t2i))
    store = None if corrects_hubs(read.manifest) else table.embeddings()
    inspection = inspect_anchor(read, known, direction, row, top, store, screened, only or "", known.named)
    if as_json:
        echo_json([asdict(inspection)])
    else:
        _show_list(inspection, is_one_set=read.is_one_set)


def _find_row(noun: str, named: str, ids: Sequence[str], count: int) -> int:
    if rows := [row for row, one in enumerate(ids) if one == named]:
        if rows[1:]:
            echo(f"{noun}s {', '.join(map(str, rows))} have the id {named!r}; this is the first", err=True)
        return rows[0]
    if not named.isdecimal() or int(named) >= count:
        like = f"ids look like {ids[0]!r}" if ids else f"{noun}s have no ids; give them as --{noun}-ids"
        raise ValueError(f"{noun} {named!r} is neither an id nor a row; rows are 0 to {count - 1}, {like}.")
    return int(named)


def _show_list(one: Inspection, *, is_one_set: bool) -> None:
    item = "item" if is_one_set else "image"
    anchor = f"{item} {one.anchor} ({one.image_id})"
    if one.direction == "t2i":
        name = (f" ({one.caption_id})" if one.caption_id else "") + (f" “{one.text}”" if one.text else "")
        anchor = f"caption {one.anchor}{name}, of {f'image {one.image_id}' if one.image_id else 'no image'}"
    say((anchor, "bold"), f", {one.direction}")
    say("positives:" if one.positives else "no positives", style="green")
    for positive in one.positives:
        name = positive.text or positive.caption_id or f"row {positive.row}"
        place = f"would be rank {positive.rank}" if positive.rank else f"would be beyond rank {one.h}"
        score = "" if positive.score is None else f"{positive.score:.4f}  {place}  "
        say(f"  {score}{'image ' if one.direction == 't2i' else ''}{name}", style="green")
    if one.positives and one.positives[0].score is None and one.lowest_positive_score is not None:
        say(f"  the lowest of them scores {one.lowest_positive_score:.4f}", style="green")
    rows = []
    for each in one.negatives:
        marks = ", ".join(filter(None, (each.duplicate, *each.flags)))
        shown = styled(f"{each.score:.4f}", ("▲", "red") if each.above_positive else " ")
        names = each.image_id, "" if is_one_set else each.caption_id, " ".join(each.sources)
        text = styled((f"({marks}) " if marks else "", "yellow"), each.text)
        rows.append((str(each.rank), shown, str(each.row), *names, text))
    show_rows(("rank", "score", "row", item, "caption id", "listed by", "text" if is_one_set else "caption"), rows)
    if any(each.above_positive for each in one.negatives):
        say("▲ scores at least as high as a positive", style="dim")
    say()


@click.command("audit")
@takes_tables("table", json=True)
def audit_command(table: NamedTable, as_json: bool) -> None:
    """Check that a table is sound.

    Check that ids are in range and no list repeats an id or holds one of the anchor's positives; check order, finite
    scores, padding, lengths, both directions, certificates, and that footer, manifest and content agree. The exit code
    is 1 if anything is wrong.
    """
    findings, manifest = audit(table.folder), read_manifest(table.folder)
    guarantees = {direction: search_facts(manifest, direction) for direction in table_directions(manifest)}
    described = {direction: describe_guarantee(about) for direction, about in guarantees.items()}
    if as_json:
        echo_json({"table": str(table.folder), "errors": [*map(str, findings)], "guarantees": described})
        sys.exit(bool(findings))
    for finding in findings:
        echo(f"error: {finding}")
    if findings:
        echo(f"{counted(len(findings), 'check fails', 'checks fail')}; mine the table again", err=True)
        sys.exit(1)
    echo(f"{table.folder} is sound")
    for direction, sentence in described.items():
        if guarantees[direction].get("guarantee") != "exact":
            echo(f"{direction}: {sentence}")


@click.command("stats")
@own_view
@takes_tables("table", json=True)
def stats_command(table: NamedTable, view: Path | None, as_json: bool) -> None:
    """Describe a table's scores and hubs.

    Show its scores, the ranks that positives would have, what a screen relative to the positive would keep by rank, and
    hubs; with a view made by `aoq screen`, also the number of negatives that each rule flags.
    """
    read = table.read()
    described = {
        direction: statistics.describe(
            read[direction], len(read[OPPOSITE[direction]]), mean_positive=_mean_positive(read, direction)
        )
        for direction in read.directions
    }
    if is_corrected := "hubness" in read.manifest.get("teacher", {}):
        described = {direction: replace(one, kept_by_margin={}) for direction, one in described.items()}
    screened = table.read_view(view, or_own=True)
    guarantees = {direction: describe_guarantee(search_facts(read.manifest, direction)) for direction in described}
    if as_json:
        shown = {d: {**asdict(one), "guarantee": guarantees[d]} for d, one in described.items()}
        for direction, counts in screened.manifest["directions"].items() if screened is not None else ():
            shown[direction]["screen"] = counts
        echo_json(shown)
        return
    for direction, one in described.items():
        say((direction, "bold"), f": {one.anchors} lists of {one.h}, {one.full:.2%} full")
        say(guarantees[direction])
        _show_statistics(one)
    if is_corrected:
        say("scores are corrected for hubs: screen with absolute_margin instead of relative_margin")
    if screened is not None:
        show_counts(screened)
    elif not any(one.exceeds_false_negatives for one in described.values()):
        kept = [one.kept_by_margin for one in described.values() if one.kept_by_margin]
        advised = [(name, margin) for name, margin, _ in map(statistics.recommended_margin, kept) if margin is not None]
        rule = ["--mutual-rank", "5"]
        for name, margin in advised[:1]:
            rule = ["--relative-margin", f"{margin:g}", *["--margin-positive", "mean"] * (name == "mean")]
        echo_next(command_line("aoq", "screen", table.name, "VIEW", *rule))


def _mean_positive(table: NegativeTable, direction: Direction) -> np.ndarray | None:
    """Return the mean score of each image's captions, if it may differ from the lowest."""
    with suppress(ValueError):  # the table lacks pairs or scores
        return table.mean_positive_scores() if direction == "i2t" and table.own("i2t").most > 1 else None
    return None


def _show_statistics(one: statistics.Description) -> None:
    figures = {
        "first score": one.first_score,
        "last score": one.last_score,
        "lowest positive's score": one.positive_score,
        "lowest positive's rank": one.positive_rank,
    }
    rows = []
    for name, values in figures.items():
        most = one.h if values is one.positive_rank else math.inf
        shown = (f"{value:.4g}" if value <= most else f">{most}" for value in values or ())
        rows.append((name, *(shown if values else ["-"] * len(statistics.QUANTILES))))
    show_rows(("", *(f"{quantile:.0%}" for quantile in statistics.QUANTILES)), rows)
    for name, kept in one.kept_by_margin.items():
        starts = statistics.BANDS[: len(next(iter(kept.values())))]
        ends = [*(start - 1 for start in starts[1:]), one.h]
        say(f"\nnegatives at or below a percentage of the {name} positive's score, by rank:")
        names = [f"{start}-{end}" if end > start else f"{start}" for start, end in zip(starts, ends, strict=True)]
        shares = [(f"{1 - m:.0%}", *(f"{share:.0%}" for share in each)) for m, each in kept.items()]
        show_rows(("kept", *names), shares)
    if one.kept_by_margin:
        name, margin, why = statistics.recommended_margin(one.kept_by_margin)
        how = "" if margin is None else f": screen with relative_margin = {margin:g}"
        say(why + how + (' and margin_positive = "mean"' if name == "mean" else ""), "\n")
    line = f"{one.never_listed:.2%} of the candidates are in no list"
    if one.above_positive is not None:
        why = ", more than false negatives explain: the teacher is weak, or pairs are wrong"
        why = why if one.exceeds_false_negatives else ""
        line = f"{one.above_positive:.2%} of listed negatives score at least as high as a positive{why}; {line}"
    hubs = ", ".join(f"row {row} ({count})" for row, count in one.most_listed)
    say(f"{line}\nlisted most often: {hubs}\n")


@click.command("diff")
@click.option("--depth", type=int, help="Compare up to this rank; default: to the end of the shorter list.")
@takes_tables("table", "other", json=True)
def diff_command(table: NamedTable, other: NamedTable, depth: int | None, as_json: bool) -> None:
    """Compare the lists of two tables.

    Both must come from the same data: row n of one is row n of the other. A warning says if ids or true pairs differ.
    """
    tables = table.read(), other.read()
    differences = statistics.compare(*tables, depth)
    if reason := statistics.data_differ(*tables):
        echo(f"warning: {reason}; if row n differs between them, the comparison is meaningless.", err=True)
    if as_json:
        echo_json({direction: asdict(one) for direction, one in differences.items()})
        return
    figures = {d: (one.overlap, one.rank_biased_overlap, one.same_order) for d, one in differences.items()}
    rows = [(d, str(differences[d].depth), *(f"{value:.4f}" for value in values)) for d, values in figures.items()]
    show_rows(("", "depth", "overlap", "rank-biased overlap", "same order"), rows)
    for direction, one in differences.items():
        changed = ", ".join(f"row {row} ({overlap:.2f})" for row, overlap in one.most_changed if overlap < 1)
        say(f"{direction}, least in common: {changed or 'none, all lists are equal as sets'}")
