"""`aoq audit`, `stats`, `diff`, `drift` and `screen`: negative tables as a whole."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.table import Table

from aoq.pipeline.cli.naming import to_make
from aoq.pipeline.cli.options import COUNT, PATH, as_json, experiment_chain, normalise, with_default
from aoq.pipeline.cli.output import Console, echo, echo_json, styled
from aoq.pipeline.cli.vectors import open_sides
from aoq.pipeline.config.screen import Screen
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.planning.chain import Chain
from aoq.pipeline.search.problem import OTHER

if TYPE_CHECKING:
    from aoq.pipeline.tables.screens.view import View
    from aoq.pipeline.tables.statistics import Difference

STAGES = click.Choice(["second_round", "control", "first_round"])


@click.command()
@click.argument("table", type=PATH)
def audit(table: Path) -> None:
    """Check that a table is sound.

    TABLE is the folder of a negative table, such as runs/EXPERIMENT/hard_negatives/table. Ids in range, no own
    positive, no repeats, order, finite scores, padding, lengths, the two directions against each other, certificates,
    and footer, manifest and content against each other.
    """
    from aoq.pipeline.tables.audit import audit as find_all

    findings = find_all(table)
    for finding in findings:
        echo(f"error: {finding}")
    if findings:
        echo(f"{len(findings)} checks fail; mine the table again", err=True)
        sys.exit(1)
    echo(f"{table} is sound")


@click.command()
@click.argument("table", type=PATH)
@click.option("--view", type=PATH, help="A view made by `aoq screen`; count what its rules found as well.")
@as_json
def stats(table: Path, view: Path | None, as_json: bool) -> None:
    """Describe a table's scores and hubs.

    Of the table in the folder TABLE: scores, where the positives would rank, hubs, suspected true matches.
    """
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.statistics import QUANTILES, describe
    from aoq.pipeline.tables.table import read_table

    read = read_table(table)
    described = {direction: describe(read[direction], len(read[OTHER[direction]])) for direction in read.directions}
    seen = None if view is None else read_view(view, read.manifest)
    if as_json:
        found = {direction: asdict(one) for direction, one in described.items()}
        for direction, counts in seen.manifest["directions"].items() if seen is not None else ():
            found[direction]["screen"] = counts
        echo_json(found)
        return
    console = Console()
    for direction, one in described.items():
        console.print(styled((direction, "bold"), f": {one.anchors} lists of {one.h}, {one.full:.2%} full"))
        rows = Table("", *(f"{quantile:.0%}" for quantile in QUANTILES), box=None, pad_edge=False)
        for name, values in (
            ("first score", one.first_score),
            ("last score", one.last_score),
            ("lowest positive's score", one.positive_score),
            ("lowest positive's rank", one.positive_rank),
        ):
            rows.add_row(name, *([f"{value:.4g}" for value in values or ()] or ["-"]))
        console.print_table(rows)
        said = f"{one.never_listed:.2%} of the candidates are in no list"
        if one.above_positive is not None:
            said = f"{one.above_positive:.2%} of the listed score at least as high as a positive; {said}"
        hubs = ", ".join(f"row {row} ({count})" for row, count in one.most_listed)
        console.print(f"{said}\nin most lists: {hubs}\n", soft_wrap=True)
    if seen is not None:
        _show_counts(seen)


@click.command()
@click.argument("table", type=PATH)
@click.argument("other", type=PATH)
@click.option("--depth", type=int, help="Compare up to this rank; default: as far as both go.")
@as_json
def diff(table: Path, other: Path, depth: int | None, as_json: bool) -> None:
    """Compare the lists of two tables.

    The lists of the tables in the folders TABLE and OTHER are compared.
    """
    from aoq.pipeline.tables.statistics import compare
    from aoq.pipeline.tables.table import read_table

    found = compare(read_table(table), read_table(other), depth)
    if as_json:
        echo_json({direction: asdict(one) for direction, one in found.items()})
        return
    rows = Table("", "depth", "overlap", "rank-biased overlap", "same order", box=None, pad_edge=False)
    for direction, one in found.items():
        figures = (f"{value:.4f}" for value in (one.overlap, one.rank_biased_overlap, one.same_order))
        rows.add_row(direction, str(one.depth), *figures)
    Console().print_table(rows)
    _show_most_changed(found)


@click.command()
@experiment_chain
@with_default("--of", "stage", default="second_round", type=STAGES, help="The stage whose model searches.")
@click.option("--weights", type=PATH, help="A model.safetensors in place of a stage's.")
@with_default("--anchors", default=256, type=COUNT, help="Searched in full, each way.")
@click.option("--depth", type=int, help="Compare up to this rank; default: all.")
@as_json
def drift(chain: Chain, stage: str, weights: Path | None, anchors: int, depth: int | None, as_json: bool) -> None:
    """Compare a model with its table.

    Sampled anchors of the training set are searched with a model of EXPERIMENT, and compared with its negative table.
    Little overlap: what the table calls hard is no longer what this model confuses.
    """
    from aoq.pipeline.engine import Engine
    from aoq.pipeline.mining.drift import measure_drift
    from aoq.pipeline.produce.data import open_pairs
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.training.checkpoint import load_model

    name = chain.experiment.name
    for needed in ("hard_negatives", *(() if weights else (stage,))):
        if not chain[needed].exists():
            raise ValueError(f"{name} has no {needed} yet; run: {to_make(needed)}")
    device = Engine().torch_device()
    owner = chain if weights or stage != "first_round" else chain.owner(stage)
    model = load_model(weights or chain[stage].opened() / "model.safetensors").to(device)
    table = read_table(chain["hard_negatives"].opened() / "table")
    found = measure_drift(model, open_pairs(owner, "train"), table, device, anchors=anchors, depth=depth)
    if as_json:
        echo_json({direction: asdict(one) for direction, one in found.items()})
        return
    columns = ("", "anchors", "depth", "overlap", "rank-biased", "above positive", "by the table")
    rows = Table(*columns, box=None, pad_edge=False)
    for direction, one in found.items():
        between = one.lists
        shares = ("-" if share is None else f"{share:.2%}" for share in (one.above_positive, one.above_positive_then))
        figures = (f"{between.overlap:.4f}", f"{between.rank_biased_overlap:.4f}", *shares)
        rows.add_row(direction, str(one.anchors), str(between.depth), *figures)
    Console().print_table(rows)
    _show_most_changed({direction: one.lists for direction, one in found.items()})


def _show_most_changed(found: Mapping[str, Difference]) -> None:
    for direction, one in found.items():
        changed = ", ".join(f"row {row} ({overlap:.2f})" for row, overlap in one.most_changed)
        Console().print(f"{direction}, least in common: {changed}", soft_wrap=True)


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every rule of [screen], and for what goes with them."""
    for rule, field in reversed(Screen.model_fields.items()):
        if rule == "suspected":  # which is up to the training
            continue
        given = next(iter(get_args(field.annotation)), field.annotation)  # of `int | None`, the int
        kind: Any = getattr(given, "__origin__", given)
        how = {"is_flag": True} if kind is bool else {"type": get_args(kind) or kind}
        command = click.option(f"--{rule.replace('_', '-')}", help=field.description, **how)(command)
    return command


@click.command()
@click.argument("table", type=PATH)
@click.argument("output", type=PATH)
@_rule_options
@click.option("--texts", type=PATH, help="The captions, one a line.")
@click.option("--images", help="The images' vectors, as for `aoq mine`.")
@click.option("--captions", help="The captions' vectors.")
@normalise
def screen(
    table: Path,
    output: Path,
    texts: Path | None,
    images: str | None,
    captions: str | None,
    normalise: bool,
    **rules: Any,
) -> None:
    """Flag suspected false negatives.

    What the rules say of the table in the folder TABLE is written to the folder OUTPUT. The table stays as it is:
    OUTPUT is a view of it, with flags and a suspicion for every negative, which `aoq stats`, `aoq inspect` and
    `aoq export` take as --view. Experiments have a section [screen] instead, with the same rules.
    """
    from aoq.pipeline.tables.screens.view import write_view
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.tables.writing import made_whole

    with made_whole(output) as made:
        vectors = open_sides(images, captions, made.parent, normalise=normalise)
        lines = None if texts is None else read_lines(texts)
        view = read_table(table).screen(texts=lines, **vectors, **rules).view
        write_view(view, made)
    _show_counts(view)


def _show_counts(view: View) -> None:
    """How many negatives each rule takes, of those that the rules before it leave, and meets altogether."""
    for direction, counts in view.manifest["directions"].items():
        rows = Table("", "meets", "takes", "left", box=None, pad_edge=False)
        left = counts["listed"]
        rows.add_row("listed", "", "", str(left))
        for rule, taken in counts["takes"].items():
            left -= taken
            rows.add_row(rule, str(counts["meets"][rule]), str(taken), str(left))
        console, judged = Console(), f", {counts['judged']} negatives are judged" if "judged" in counts else ""
        console.print(styled((direction, "bold"), f": {counts['empty']} lists are left with none{judged}"))
        console.print_table(rows)
