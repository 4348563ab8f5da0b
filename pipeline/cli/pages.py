"""`aoq report` and `aoq browse`: a page about runs, and pages on this machine to look through them and their tables."""

from __future__ import annotations

from pathlib import Path

import click

from aoq.pipeline.cli.naming import EXPERIMENT, typed
from aoq.pipeline.cli.options import roots, with_default
from aoq.pipeline.cli.output import echo, echo_next
from aoq.pipeline.extras import import_extra
from aoq.pipeline.planning.chain import split_member
from aoq.pipeline.planning.comparisons import SEPARATOR, plan_report
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.scratch import write_atomically

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=EXPERIMENT)
@with_default("--output", "-o", default="report.html", type=FILE)
@roots
def report(runs: tuple[str, ...], output: Path, **folders: Path) -> None:
    """Write one HTML page about runs.

    Each is an experiment, with an override after @ if need be, as in demo@seed=1. Nothing is trained for the page:
    `aoq evaluate EXPERIMENT` makes what is missing.
    """
    from aoq.pipeline.produce.comparisons import render_report

    planned = plan_report(SEPARATOR.join(runs), **folders)
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent} does not exist; make it, or choose another --output.")
    write_atomically(output, render_report(planned).encode())
    echo(output)
    if missing := [member for member in planned.members if not member.artifact.exists()]:
        echo(f"not evaluated yet: {', '.join(member.run for member in missing)}", err=True)
        echo_next(*(typed("aoq", "evaluate", member.asked) for member in missing), then=True)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=EXPERIMENT, metavar="EXPERIMENT...")
@with_default("--port", default=8765, type=click.IntRange(0, 65535), help="On 127.0.0.1; 0: any free one.")
@with_default(
    "--matches",
    default="matches.csv",
    type=FILE,
    help="Where marked pairs are kept: .csv, .parquet or .json, as [screen] positives reads it.",
)
@roots
def browse(runs: tuple[str, ...], port: int, matches: Path, **folders: Path) -> None:
    """Browse tables and evaluations.

    Those of EXPERIMENTs are shown in a browser, until Ctrl-C. Each may carry an override after @, as in "demo@seed=1".
    Search captions, see what an image or a caption is confused with and whose negative it is, compare tables and
    models, and mark negatives that match after all: `[screen] positives` and `aoq screen --positives` read the file of
    marks.
    """
    import_extra("flask", "browse", "aoq browse")
    from aoq.pipeline.browse.app import open_server
    from aoq.pipeline.browse.matches import Matches
    from aoq.pipeline.browse.source import open_source

    if len(set(runs)) < len(runs):
        raise ValueError(f"an experiment stands twice among {list(runs)}; name each once.")
    members = [split_member(named) for named in runs]
    chains = [plan(experiment, override=override, **folders) for experiment, override in members]
    source = open_source(list(zip(runs, chains, strict=True)))
    split = source.train.split if source.train else None
    marked = Matches(matches, split.image_count, split.caption_count) if split else None
    server = open_server(source, marked, port)
    echo(f"http://127.0.0.1:{server.port}/   Ctrl-C ends it")
    if marked is not None:
        echo(f"true matches are marked in {marked.path} ({len(marked)} so far)")
    server.serve_forever()
