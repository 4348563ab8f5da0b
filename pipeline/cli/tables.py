"""`aoq audit`, `stats`, `diff` and `drift`: tables as a whole."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from aoq.pipeline.cli.options import COUNT, PATH, as_json, experiment_chain, roots, with_default
from aoq.pipeline.cli.output import counted, echo, echo_json, echo_next, say, show_rows, to_make, typed
from aoq.pipeline.cli.screen import show_counts
from aoq.pipeline.cli.table_options import NamedTable, own_view, takes_tables
from aoq.pipeline.console import show_progress
from aoq.pipeline.search.problem import OTHER
from aoq.pipeline.settings import configured_engine
from aoq.pipeline.stages.chain import Chain
from aoq.pipeline.tables.audit import audit as find_all
from aoq.pipeline.tables.card import describe_guarantee
from aoq.pipeline.tables.files import directions_of, read_manifest, search_facts
from aoq.pipeline.tables.statistics import QUANTILES, Description, Difference, compare, data_differ, describe
from aoq.pipeline.tables.table import read_table

STAGES = click.Choice(["second_round", "control", "first_round"])


@click.command()
@takes_tables("table")
@as_json
@roots
def audit(table: NamedTable, as_json: bool) -> None:
    """Check that a table is sound.

    TABLE is an experiment or a table's folder. The exit code is 1 if anything is wrong. Checked are: ids in range, no
    own positive, no repeats, order, finite scores, padding, lengths, the two directions against each other,
    certificates, and footer, manifest and content against each other.
    """
    findings, manifest = find_all(table.folder), read_manifest(table.folder)
    guarantees = {direction: search_facts(manifest, direction) for direction in directions_of(manifest)}
    described = {direction: describe_guarantee(about) for direction, about in guarantees.items()}
    if as_json:
        errors = [str(finding) for finding in findings]
        echo_json({"table": str(table.folder), "errors": errors, "guarantees": described})
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


@click.command()
@takes_tables("table")
@own_view
@as_json
@roots
def stats(table: NamedTable, view: Path | None, as_json: bool) -> None:
    """Describe a table's scores and hubs.

    TABLE is an experiment or a table's folder. Shown are its scores, the ranks that positives would have, and hubs;
    with a view, which `aoq screen` makes, also how many negatives each rule flags.
    """
    with show_progress("describing") as report:
        report(0, 3, "reading the table")
        read, described = table.read(), {}
        for done, direction in enumerate(read.directions, start=1):
            report(done, 3, direction)
            described[direction] = describe(read[direction], len(read[OTHER[direction]]))
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
    if screened is not None:
        show_counts(screened)
    elif not any(one.exceeds_false_negatives for one in described.values()):
        echo_next(typed("aoq", "screen", table.name, "VIEW", "--mutual-rank", "5"))


def _show_statistics(one: Description) -> None:
    rows = [
        (name, *([_quantile(value, beyond) for value in values or ()] or ["-"]))
        for name, values, beyond in (
            ("first score", one.first_score, math.inf),
            ("last score", one.last_score, math.inf),
            ("lowest positive's score", one.positive_score, math.inf),
            ("lowest positive's rank", one.positive_rank, float(one.h)),
        )
    ]
    show_rows(("", *(f"{quantile:.0%}" for quantile in QUANTILES)), rows)
    line = f"{one.never_listed:.2%} of the candidates are in no list"
    if one.above_positive is not None:
        why = ", more than false negatives explain: the teacher is weak, or pairs are wrong"
        why = why if one.exceeds_false_negatives else ""
        line = f"{one.above_positive:.2%} of the listed score at least as high as a positive{why}; {line}"
    hubs = ", ".join(f"row {row} ({count})" for row, count in one.most_listed)
    say(f"{line}\nin most lists: {hubs}\n")


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
def diff(table: NamedTable, other: NamedTable, depth: int | None, as_json: bool) -> None:
    """Compare the lists of two tables.

    TABLE and OTHER are experiments or tables' folders. Both must be of the same data: row n of one is row n of the
    other. A warning is printed if their ids or their true pairs show that they are not.
    """
    tables = table.read(), other.read()
    differences = compare(*tables, depth)
    if reason := data_differ(*tables):
        echo(f"warning: {reason}; row n may be another image in each, and then this says nothing.", err=True)
    if as_json:
        echo_json({direction: asdict(one) for direction, one in differences.items()})
        return
    rows = ((d, str(one.depth), *_figures(one), f"{one.same_order:.4f}") for d, one in differences.items())
    show_rows(("", "depth", "overlap", "rank-biased overlap", "same order"), rows)
    _show_most_changed(differences)


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
    from aoq.pipeline.stages.splits import open_pairs
    from aoq.pipeline.training.checkpoint import load_model

    for needed in ("hard_negatives", *(() if weights else (stage,))):
        if not chain[needed].exists():
            raise ValueError(f"{chain.experiment.name} has no {needed} yet; run: {to_make(needed)}")
    device = configured_engine().torch_device()
    owner = chain if weights or stage != "first_round" else chain.owner(stage)
    model = load_model(weights or chain[stage].opened() / "model.safetensors").to(device)
    table = read_table(chain["hard_negatives"].opened() / "table")
    with show_progress("searching") as report:
        drifts = measure_drift(
            model,
            open_pairs(owner, "train"),
            table,
            device,
            anchors=anchors,
            depth=depth,
            progress=lambda direction, done, total: report(done, total, f"candidates, {direction}"),
        )
    if as_json:
        echo_json({direction: asdict(one) for direction, one in drifts.items()})
        return
    rows = []
    for direction, one in drifts.items():
        shares = ("-" if share is None else f"{share:.2%}" for share in (one.above_positive, one.above_positive_then))
        rows.append((direction, str(one.anchors), str(one.lists.depth), *_figures(one.lists), *shares))
    show_rows(("", "anchors", "depth", "overlap", "rank-biased", "above positive", "by the table"), rows)
    _show_most_changed({direction: one.lists for direction, one in drifts.items()})


def _figures(one: Difference) -> tuple[str, str]:
    return f"{one.overlap:.4f}", f"{one.rank_biased_overlap:.4f}"


def _show_most_changed(differences: Mapping[str, Difference]) -> None:
    for direction, one in differences.items():
        changed = ", ".join(f"row {row} ({overlap:.2f})" for row, overlap in one.most_changed if overlap < 1)
        say(f"{direction}, least in common: {changed or 'none, all lists hold the same'}")
