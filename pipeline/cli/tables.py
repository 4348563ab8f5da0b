"""`aoq audit`, `stats`, `diff`, `drift` and `screen`: negative tables as a whole."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.table import Table

from aoq.pipeline.cli.looking import Looked, takes_tables, teachers_vectors, texts_of
from aoq.pipeline.cli.naming import to_make, typed
from aoq.pipeline.cli.options import (
    COUNT,
    PATH,
    as_json,
    experiment_chain,
    own_view,
    roots,
    texts,
    with_default,
)
from aoq.pipeline.cli.output import Console, counted, echo, echo_json, echo_next, styled
from aoq.pipeline.cli.vectors import open_sides
from aoq.pipeline.config.screen import OF_VECTORS, RULES, Screen
from aoq.pipeline.progress import show_progress
from aoq.pipeline.search.problem import OTHER
from aoq.pipeline.settings import configured_engine
from aoq.pipeline.tables.guarantee import describe_guarantee

if TYPE_CHECKING:
    from aoq.pipeline.planning.chain import Chain
    from aoq.pipeline.tables.screens.view import View
    from aoq.pipeline.tables.statistics import Difference

STAGES = click.Choice(["second_round", "control", "first_round"])


@click.command()
@takes_tables("table")
@as_json
@roots
def audit(table: Looked, as_json: bool) -> None:
    """Check that a table is sound.

    TABLE is an experiment or a table's folder. The exit code is 1 if anything is wrong. Checked are: ids in range, no
    own positive, no repeats, order, finite scores, padding, lengths, the two directions against each other,
    certificates, and footer, manifest and content against each other.
    """
    from aoq.pipeline.tables.audit import audit as find_all
    from aoq.pipeline.tables.files import directions_of, read_manifest, said_of

    findings, manifest = find_all(table.folder), read_manifest(table.folder)
    guarantees = {direction: said_of(manifest, direction) for direction in directions_of(manifest)}
    told = {direction: describe_guarantee(about) for direction, about in guarantees.items()}
    if as_json:
        errors = [str(finding) for finding in findings]
        echo_json({"table": str(table.folder), "errors": errors, "guarantees": told})
        sys.exit(bool(findings))
    for finding in findings:
        echo(f"error: {finding}")
    if findings:
        echo(f"{counted(len(findings), 'check fails', 'checks fail')}; mine the table again", err=True)
        sys.exit(1)
    echo(f"{table.folder} is sound")
    for direction, said in told.items():
        if guarantees[direction].get("guarantee") != "exact":
            echo(f"{direction}: {said}")


@click.command()
@takes_tables("table")
@own_view
@as_json
@roots
def stats(table: Looked, view: Path | None, as_json: bool) -> None:
    """Describe a table's scores and hubs.

    TABLE is an experiment or a table's folder. Shown are its scores, the ranks that positives would have, and hubs;
    with a view, which `aoq screen` makes, also how many negatives each rule flags.
    """
    from aoq.pipeline.tables.files import said_of
    from aoq.pipeline.tables.screens.view import read_view
    from aoq.pipeline.tables.statistics import QUANTILES, describe
    from aoq.pipeline.tables.table import read_table

    with show_progress("describing") as report:
        report(0, 3, "reading the table")
        read, view = read_table(table.folder), table.view(view)
        described = {}
        for done, direction in enumerate(read.directions, start=1):
            report(done, 3, direction)
            described[direction] = describe(read[direction], len(read[OTHER[direction]]))
    seen = None if view is None else read_view(view, read.manifest)
    if as_json:
        found = {
            direction: {**asdict(one), "guarantee": describe_guarantee(said_of(read.manifest, direction))}
            for direction, one in described.items()
        }
        for direction, counts in seen.manifest["directions"].items() if seen is not None else ():
            found[direction]["screen"] = counts
        echo_json(found)
        return
    console = Console()
    for direction, one in described.items():
        console.print(styled((direction, "bold"), f": {one.anchors} lists of {one.h}, {one.full:.2%} full"))
        console.print(describe_guarantee(said_of(read.manifest, direction)), soft_wrap=True)
        rows = Table("", *(f"{quantile:.0%}" for quantile in QUANTILES), box=None, pad_edge=False)
        for name, values in (
            ("first score", one.first_score),
            ("last score", one.last_score),
            ("lowest positive's score", one.positive_score),
            ("lowest positive's rank", one.positive_rank),
        ):
            beyond = float(one.h) if values is one.positive_rank else math.inf
            rows.add_row(name, *([_quantile(value, beyond) for value in values or ()] or ["-"]))
        console.print_table(rows)
        said = f"{one.never_listed:.2%} of the candidates are in no list"
        if one.above_positive is not None:
            why = ", more than false negatives explain: the teacher is weak, or pairs are wrong"
            why = why if one.exceeds_false_negatives else ""
            said = f"{one.above_positive:.2%} of the listed score at least as high as a positive{why}; {said}"
        hubs = ", ".join(f"row {row} ({count})" for row, count in one.most_listed)
        console.print(f"{said}\nin most lists: {hubs}\n", soft_wrap=True)
    if seen is not None:
        _show_counts(seen)
    elif not any(one.exceeds_false_negatives for one in described.values()):
        echo_next(typed("aoq", "screen", table.asked, "VIEW", "--mutual-rank", "5"))


def _quantile(value: float, beyond: float) -> str:
    """A number, or that it lies beyond the list.

    >>> _quantile(12.0, 300.0), _quantile(301.0, 300.0)
    ('12', '>300')
    """
    return f"{value:.4g}" if value <= beyond else f">{beyond:.0f}"


@click.command()
@takes_tables("table", "other")
@click.option("--depth", type=int, help="Compare up to this rank; default: as far as both go.")
@as_json
@roots
def diff(table: Looked, other: Looked, depth: int | None, as_json: bool) -> None:
    """Compare the lists of two tables.

    TABLE and OTHER are experiments or tables' folders. Both must be of the same data: row n of one is row n of the
    other. A warning is printed if their ids or their true pairs show that they are not.
    """
    from aoq.pipeline.tables.statistics import compare, data_differ
    from aoq.pipeline.tables.table import read_table

    tables = read_table(table.folder), read_table(other.folder)
    found = compare(*tables, depth)
    if difference := data_differ(*tables):
        echo(f"warning: {difference}; row n may be another image in each, and then this says nothing.", err=True)
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
@with_default("--anchors", default=256, type=COUNT, help="Number of anchors, in each direction.")
@click.option("--depth", type=int, help="Compare up to this rank; default: all.")
@as_json
def drift(chain: Chain, stage: str, weights: Path | None, anchors: int, depth: int | None, as_json: bool) -> None:
    """Compare a model with its table.

    A model of EXPERIMENT searches sampled anchors of the training set, and its lists are compared with the experiment's
    table. Little overlap means that this model no longer confuses what the table calls hard.
    """
    from aoq.pipeline.mining.drift import measure_drift
    from aoq.pipeline.produce.data import open_pairs
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.training.checkpoint import load_model

    name = chain.experiment.name
    for needed in ("hard_negatives", *(() if weights else (stage,))):
        if not chain[needed].exists():
            raise ValueError(f"{name} has no {needed} yet; run: {to_make(needed)}")
    device = configured_engine().torch_device()
    owner = chain if weights or stage != "first_round" else chain.owner(stage)
    model = load_model(weights or chain[stage].opened() / "model.safetensors").to(device)
    table = read_table(chain["hard_negatives"].opened() / "table")
    with show_progress("searching") as report:
        found = measure_drift(
            model,
            open_pairs(owner, "train"),
            table,
            device,
            anchors=anchors,
            depth=depth,
            progress=lambda direction, done, total: report(done, total, f"candidates, {direction}"),
        )
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
        changed = ", ".join(f"row {row} ({overlap:.2f})" for row, overlap in one.most_changed if overlap < 1)
        changed = changed or "none, all lists hold the same"
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
@takes_tables("table")
@click.argument("output", type=PATH)
@_rule_options
@texts
@click.option("--image-vectors", "--images", "images", help="The images' vectors, as for `aoq mine`.")
@click.option("--caption-vectors", "--captions", "captions", help="The captions' vectors.")
@click.option("--normalise", is_flag=True, expose_value=False, hidden=True)  # cosines divide by the norms without it
@as_json
@roots
def screen(
    table: Looked,
    output: Path,
    texts: Path | None,
    images: str | None,
    captions: str | None,
    as_json: bool,
    **rules: Any,
) -> None:
    """Flag suspected false negatives.

    TABLE is an experiment or a table's folder. Give at least one rule, such as --mutual-rank 5. The table stays as it
    is. The new folder OUTPUT is a view of it: flags and a suspicion for every negative. `aoq stats`, `aoq inspect` and
    `aoq export` take it as --view.

    Rules that need texts or vectors take an experiment's own, or those that are given. To train on a screened table,
    give an experiment a section [screen] with the same rules.
    """
    from aoq.pipeline.tables.screens.view import write_view
    from aoq.pipeline.tables.table import read_table
    from aoq.pipeline.tables.writing import made_whole

    if all(given is None or given is False for given in rules.values()):
        listed = ", ".join(f"--{rule.replace('_', '-')}" for rule in (*RULES, "match_prior"))
        raise ValueError(f"no rule is given; give at least one of {listed}, such as --mutual-rank 5.")
    with made_whole(output) as made:
        vectors = open_sides(images, captions, made.parent)
        vectors = {**_own_vectors(table, rules), **vectors}
        view = read_table(table.folder).screen(texts=texts_of(texts, table.split()), **vectors, **rules).view
        write_view(view, made)
    if as_json:
        echo_json({"view": str(output), **view.manifest["directions"]})
        return
    _show_counts(view)
    echo(output)
    echo_next(typed("aoq", "stats", table.asked, "--view", str(output)))


def _own_vectors(table: Looked, rules: Mapping[str, Any]) -> Mapping[str, Any]:
    """The vectors of an experiment's teacher, where a rule asks for vectors."""
    if table.chain is None or not any(rules[rule] for rule in OF_VECTORS):
        return {}
    store = teachers_vectors(table.chain)
    return {} if store is None else {"images": store.images, "captions": store.captions}


def _show_counts(view: View) -> None:
    """Print how many negatives meet each rule, and how many of these no earlier rule took."""
    for direction, counts in view.manifest["directions"].items():
        rows = Table("", "meets", "takes", "left", box=None, pad_edge=False)
        left = counts["listed"]
        rows.add_row("listed", "", "", str(left))
        for rule, taken in counts["takes"].items():
            left -= taken
            rows.add_row(rule, str(counts["meets"][rule]), str(taken), str(left))
        console, judged = Console(), f", {counted(counts['judged'], 'negative')} judged" if "judged" in counts else ""
        console.print(styled((direction, "bold"), f": {counted(counts['empty'], 'list')} left empty{judged}"))
        console.print_table(rows)
