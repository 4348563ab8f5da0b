"""`aoq browse`: pages on this machine to look through tables and runs."""

from __future__ import annotations

from pathlib import Path

import click

from aoq.pipeline.cli.experiment import roots
from aoq.pipeline.extras import import_extra
from aoq.pipeline.planning.chain import split_member
from aoq.pipeline.planning.planner import plan


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="EXPERIMENT...")
@click.option(
    "--port", default=8765, show_default=True, type=click.IntRange(0, 65535), help="On 127.0.0.1; 0: any free one."
)
@click.option(
    "--matches",
    default="matches.csv",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where marked pairs are kept: .csv, .parquet or .json, as [screen] positives reads it.",
)
@roots
def browse(runs: tuple[str, ...], port: int, matches: Path, folders: dict[str, Path]) -> None:
    """Look through the tables and evaluations of EXPERIMENTs in a browser, until Ctrl-C.

    Each may carry an override after @, as in "demo@seed=1". Search captions, see what an image or a caption is
    confused with and whose negative it is, compare tables and models, and mark negatives that match after all:
    `[screen] positives` and `aoq screen --positives` read the file of marks.
    """
    import_extra("flask", "browse", "aoq browse")
    from aoq.pipeline.browse.app import create_app, open_port, server_on
    from aoq.pipeline.browse.matches import Matches
    from aoq.pipeline.browse.source import open_source

    if len(set(runs)) < len(runs):
        raise ValueError(f"an experiment stands twice among {list(runs)}; name each once.")
    members = [split_member(named) for named in runs]
    chains = [plan(experiment, override=override, **folders) for experiment, override in members]
    source = open_source(list(zip(runs, chains, strict=True)))
    split = source.train.split if source.train else None
    marked = Matches(matches, split.image_count, split.caption_count) if split else None
    with open_port(port) as listening:
        chosen = listening.getsockname()[1]
        server = server_on(listening, create_app(source, marked, chosen))
    click.echo(f"http://127.0.0.1:{chosen}/   Ctrl-C ends it")
    if marked is not None:
        click.echo(f"true matches are marked in {marked.path} ({len(marked)} so far)")
    server.serve_forever()
