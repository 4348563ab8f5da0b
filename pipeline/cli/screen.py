"""`aoq screen` and `aoq to-judge`: suspected false negatives, by rules and by a judge."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import click

from aoq.pipeline.cli.options import PATH, POSITIVE, with_default
from aoq.pipeline.cli.output import command_line, counted, echo, echo_json, echo_next, say, show_rows
from aoq.pipeline.cli.table_options import NamedTable, row_options, takes_tables
from aoq.pipeline.config.screen import RULES, VECTOR_RULES, ScreenSection
from aoq.pipeline.tables.contents import TableRows
from aoq.pipeline.tables.pairs import TABLE_SUFFIXES
from aoq.pipeline.tables.screens.view import View, write_view
from aoq.pipeline.tables.writing import made_whole
from aoq.pipeline.vectors import open_sides


def _rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for rule, field in reversed(ScreenSection.model_fields.items()):
        if rule == "suspected":  # a key for training
            continue
        annotation = next(iter(get_args(field.annotation)), field.annotation)  # the int of `int | None`
        kind: Any = getattr(annotation, "__origin__", annotation)
        how: dict[str, Any] = {"is_flag": True} if kind is bool else {"type": get_args(kind) or kind}
        if kind is Literal:
            how["type"] = click.Choice(get_args(annotation))
        command = click.option(f"--{rule.replace('_', '-')}", help=field.description, **how)(command)
    return command


@click.command("screen")
@_rule_options
@row_options("texts")
@click.option("--image-vectors", "--images", "images", help="The images' vectors, as for `aoq mine`.")
@click.option("--caption-vectors", "--captions", "captions", help="The captions' vectors.")
@click.option("--allow-empty", is_flag=True, help="Write the view even if its rules empty every list.")
@takes_tables("table", json=True)
@click.argument("output", type=PATH)
def screen_command(
    table: NamedTable,
    output: Path,
    images: str | None,
    captions: str | None,
    allow_empty: bool,
    as_json: bool,
    **rules: Any,
) -> None:
    """Flag suspected false negatives.

    Give at least one rule, such as --mutual-rank 5. The table stays unchanged. The new folder OUTPUT is a view of it:
    flags and a suspicion for every negative. `aoq stats`, `aoq inspect` and `aoq export` take it as --view.

    Rules that need texts or vectors take an experiment's own, or those of the options. To train on a screened table,
    give an experiment a section [screen] with the same rules.
    """
    if all(value is None or value is False for value in rules.values()):
        known = ", ".join(f"--{rule.replace('_', '-')}" for rule in (*RULES, "match_prior"))
        raise ValueError(f"no rule is given; give at least one of {known}, such as --mutual-rank 5.")
    with made_whole(output) as folder:
        store = table.embeddings() if any(rules[rule] is not None for rule in VECTOR_RULES) else None
        own = {} if store is None else {"images": store.images, "captions": store.captions}
        (texts, *_), vectors = table.names, own | open_sides(images, captions, folder.parent)
        view = table.read().screen(texts=texts, allow_empty=allow_empty, **vectors, **rules).view
        write_view(view, folder)
    if as_json:
        echo_json({"view": str(output), **view.manifest["directions"]})
        return
    show_counts(view)
    echo(output)
    echo_next(command_line("aoq", "stats", table.name, "--view", str(output)))


def show_counts(view: View) -> None:
    """Print how many negatives meet each rule, and how many of these no earlier rule takes."""
    for direction, counts in view.manifest["directions"].items():
        left, rows = counts["listed"], [("listed", "", "", str(counts["listed"]))]
        for rule, taken in counts["takes"].items():
            left -= taken
            rows.append((rule, str(counts["meets"][rule]), str(taken), str(left)))
        judged = f", {counted(counts['judged'], 'negative')} judged" if "judged" in counts else ""
        say((direction, "bold"), f": {counted(counts['empty'], 'list')} left empty{judged}")
        show_rows(("", "meets", "takes", "left"), rows)


@click.command("to-judge")
@with_default("--top", default=10, metavar="N", type=POSITIVE, help="Take the first N of each list.")
@click.option("--view", type=PATH, help="A view made by `aoq screen`; take only suspected pairs.")
@row_options("data", "split", "texts", "image_ids")
@takes_tables("table")
@click.argument("output", type=PATH)
def to_judge_command(table: NamedTable, output: Path, top: int, view: Path | None) -> None:
    """Write pairs for a judge to fill in.

    The new file OUTPUT (.csv, .tsv, .jsonl or .parquet) has each pair of TABLE once: image_id and caption_id, which are
    rows of the data, and similarity, the teacher's score. The columns image and caption hold the image's id and the
    caption's text, from the experiment, --data, or --image-ids and --texts; without these, the ids beside the table.
    In one set both hold texts, or ids. Add a column probability, from 0 to 1, that the two match; then:

    \b
    aoq screen TABLE VIEW --judgements OUTPUT

    Empty rows count as not judged. With --view, pairs that are judged already are left out.
    """
    from aoq.pipeline.tables.screens.judgements import pairs_to_judge, write_pairs

    table.files.require_either()
    if output.suffix not in TABLE_SUFFIXES:
        raise ValueError(f"{output} should be a file that ends in one of {', '.join(TABLE_SUFFIXES)}.")
    read = table.read()
    if read.is_one_set and (table.files.data is not None or (table.files.texts and table.files.image_ids)):
        raise click.UsageError("for a table of one set, give --texts or --image-ids, not both, nor --data")
    captions, image_ids, _ = table.names
    TableRows(read, captions, image_ids)  # refuses names that are not one per row
    images, captions = image_ids or read.ids.get("images"), captions or read.ids.get("captions")
    if read.is_one_set:
        images = captions = captions or images
    with made_whole(output) as file:
        pairs = pairs_to_judge(read, top=top, view=table.read_view(view))
        write_pairs(file, pairs, images=images, captions=captions)
    echo(f"{output}: {counted(len(pairs), 'pair')}")
    echo_next(command_line("aoq", "screen", table.name, "VIEW", "--judgements", str(output)))
