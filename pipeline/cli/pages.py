"""`aoq report` and `aoq browse`: a page about runs, and pages on this machine to look through them and their tables."""

from __future__ import annotations

from functools import partial
from getpass import getuser
from pathlib import Path

import click

from aoq.pipeline.cli.looking import table_folder, texts_of
from aoq.pipeline.cli.naming import EXPERIMENT, typed
from aoq.pipeline.cli.options import (
    caption_ids,
    data,
    image_ids,
    image_root,
    own_view,
    roots,
    split,
    texts,
    with_default,
)
from aoq.pipeline.cli.output import echo, echo_next
from aoq.pipeline.config.overrides import split_member
from aoq.pipeline.extras import import_extra
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

    Each is an experiment, with an override after @ if need be, as in demo@seed=1; its control is taken along. Nothing
    is trained for the page: `aoq evaluate EXPERIMENT` makes what is missing.
    """
    from aoq.pipeline.produce.comparisons import render_report

    planned = plan_report(SEPARATOR.join(runs), **folders)
    if not output.parent.is_dir():
        raise FileNotFoundError(f"{output.parent} does not exist; make it, or choose another --output.")
    evaluating = partial(typed, "aoq", "evaluate")
    write_atomically(output, render_report(planned, evaluating).encode())
    echo(output)
    if missing := [member for member in planned.members if not member.artifact.exists()]:
        echo(f"not evaluated yet: {', '.join(member.run for member in missing)}", err=True)
        echo_next(*(evaluating(member.asked) for member in missing), then=True)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=EXPERIMENT, metavar="TABLE...")
@with_default("--port", default=8765, type=click.IntRange(0, 65535), help="On 127.0.0.1; 0: any free one.")
@with_default(
    "--matches",
    default="matches.csv",
    type=FILE,
    help="Where marked pairs are kept: .csv, .parquet or .json, as [screen] positives reads it.",
)
@click.option("--marker", help="Who marks; default: the user's name.")
@data
@split
@texts
@image_ids
@caption_ids
@image_root
@own_view
@roots
def browse(
    runs: tuple[str, ...],
    port: int,
    matches: Path,
    marker: str | None,
    data: Path | None,
    split: str,
    texts: Path | None,
    image_ids: str | None,
    caption_ids: str | None,
    image_root: Path | None,
    view: Path | None,
    **folders: Path,
) -> None:
    """Browse tables and evaluations.

    Each TABLE is an experiment, with an override after @ if need be, as in "demo@seed=1". Or each is a table's folder,
    all of the same rows; --texts, --image-ids and --image-root, or --data, say what the rows are. The pages are served
    to browsers on this machine, until Ctrl-C.

    Start with hubs, the most confused and suspects. Search captions, see what an image or a caption is confused with
    and whose negative it is, and compare tables and models. Mark which negatives match after all and which do not:
    `[screen] positives` and `aoq screen --positives` read the file of matches, `--judgements` that of all marks.
    """
    import_extra("flask", "browse", "aoq browse")
    from aoq.pipeline.browse.app import open_server
    from aoq.pipeline.browse.folder import Given, open_folders
    from aoq.pipeline.browse.marks import Marks
    from aoq.pipeline.browse.matches import Matches
    from aoq.pipeline.browse.source import open_source
    from aoq.pipeline.cli.ids import read_ids
    from aoq.pipeline.data.folder import open_split

    if len(set(runs)) < len(runs):
        raise ValueError(f"an experiment stands twice among {list(runs)}; name each once.")
    if len(tables := [place for named in runs if (place := table_folder(named))]) == len(runs):
        opened = None if data is None else open_split(data, split)
        images, captions = (None if given is None else read_ids(given) for given in (image_ids, caption_ids))
        given = Given(data, opened, texts_of(texts, None) or captions, images, image_root, view)
        source = open_folders(tables, given)
    elif tables or data or texts or image_ids or caption_ids or image_root or view:
        raise click.UsageError("name tables' folders alone, with texts, ids and pictures, or experiments alone")
    else:
        members = [split_member(named) for named in runs]
        chains = [plan(experiment, override=override, **folders) for experiment, override in members]
        source = open_source(list(zip(runs, chains, strict=True)))
    train = source.train.split if source.train else None
    marks = Marks(Matches(matches, train.image_count, train.caption_count), marker or _user()) if train else None
    server = open_server(source, marks, port)
    echo(f"http://127.0.0.1:{server.port}/   Ctrl-C ends it")
    if marks is not None:
        echo(
            f"true matches are marked in {marks.matches.path} ({len(marks.matches)} so far), all marks in {marks.path}"
        )
    server.serve_forever()


def _user() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # a user without a name, as containers have
        return "me"
