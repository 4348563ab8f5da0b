"""`aoq report` and `aoq browse`: one page about runs, and a local server of pages about runs and their tables."""

from __future__ import annotations

import os
from functools import partial
from http.server import HTTPServer
from pathlib import Path

import click

from aoq.pipeline.cli.options import EXPERIMENT, roots, table_folder, with_default
from aoq.pipeline.cli.output import command_line, echo, echo_next
from aoq.pipeline.cli.table_options import NamedTable, RowFiles, own_view, row_options
from aoq.pipeline.config.load import split_member
from aoq.pipeline.extras import import_extra
from aoq.pipeline.files import write_atomically
from aoq.pipeline.stages.plan import plan
from aoq.pipeline.stages.report import SEPARATOR, plan_report, render_report

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=EXPERIMENT)
@with_default("--output", "-o", default="report.html", type=FILE)
@roots
def report_command(runs: tuple[str, ...], output: Path, **folders: Path) -> None:
    """Write one HTML page about runs.

    Each run is an experiment, with an optional override after @, as in demo@seed=1; the page includes its control.
    Nothing is trained for the page; `aoq evaluate EXPERIMENT` makes what is missing.
    """
    planned = plan_report(SEPARATOR.join(runs), **folders)
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent} does not exist; make it, or choose another --output.")
    evaluating = partial(command_line, "aoq", "evaluate")
    write_atomically(output, render_report(planned, evaluating).encode())
    echo(output)
    if missing := [member for member in planned.members if not member.artifact.exists()]:
        echo(f"not evaluated yet: {', '.join(member.run for member in missing)}", err=True)
        for member in missing:
            echo_next(evaluating(member.reference))


@click.command("browse")
@click.argument("runs", nargs=-1, required=True, type=EXPERIMENT, metavar="TABLE...")
@with_default("--port", default=8765, type=click.IntRange(0, 65535), help="Port on 127.0.0.1; 0: any free port.")
@with_default(
    "--matches",
    default="matches.csv",
    type=FILE,
    help="File of marked pairs: .csv, .parquet or .json, as [screen] positives reads it.",
)
@click.option("--marker", help="Name of the person who marks; default: the user's name.")
@row_options("data", "split", "texts", "image_ids", "caption_ids", "image_root")
@own_view
@roots
def browse_command(
    runs: tuple[str, ...],
    port: int,
    matches: Path,
    marker: str | None,
    files: RowFiles,
    view: Path | None,
    **folders: Path,
) -> None:
    """Browse tables and evaluations.

    Each TABLE is an experiment, with an optional override after @, as in "demo@seed=1". Or each is a table's folder,
    all with the same rows; --texts, --image-ids and --image-root, or --data, describe the rows. The pages are served
    to browsers on this machine, until Ctrl-C.

    Start with hubs, the most confused pairs and suspects. Search captions, see what an image or caption is confused
    with and which anchors list it, and compare tables and models. Mark negatives that match and those that do not:
    `[screen] positives` and `aoq screen --positives` read the file of matches, `--judgements` reads all marks.
    """
    import_extra("flask", "browse", "aoq browse")
    from aoq.pipeline.browse.app import open_server
    from aoq.pipeline.browse.marks import Marks
    from aoq.pipeline.browse.source import open_folders, open_runs

    if len(set(runs)) < len(runs):
        raise ValueError(f"{list(runs)} names an experiment twice; name each once.")
    if len(tables := [folder for run in runs if (folder := table_folder(run))]) == len(runs):
        files.require_either()
        split = NamedTable(runs[0], tables[0], files=files).split
        texts, image_ids, caption_ids = files.read(None)
        places = {"data": files.data, "image_root": files.image_root, "view": view}
        source = open_folders(tables, split, texts or caption_ids, image_ids, **places)
    elif tables or view or files != RowFiles():
        raise click.UsageError("give only table folders (with texts, ids and pictures), or only experiments")
    else:
        members = [split_member(run) for run in runs]
        chains = [plan(experiment, override=override, **folders) for experiment, override in members]
        source = open_runs(list(zip(runs, chains, strict=True)))
    rows = source.train.split if source.train else None
    marker = marker or os.environ.get("USER", "me")  # containers may lack USER
    marks = Marks(matches, len(rows.ids), len(rows.captions), marker) if rows else None
    server = open_server(source, marks, port)
    echo(f"http://127.0.0.1:{server.port}/   Ctrl-C ends it")
    if marks is not None:
        known = f"{marks.known.path} ({len(marks.known.content)} so far)"
        echo(f"true matches are marked in {known}, all marks in {marks.judged.path}")
    HTTPServer.serve_forever(server)  # werkzeug's own swallows Ctrl-C
