"""The `aoq` command: make tables and models, look at them, check them, share them."""

from __future__ import annotations

import click

from aoq.pipeline.cli.commands import Commands
from aoq.pipeline.cli.versions import show_versions


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_versions,
    help="Show the versions and devices of aoq, Python, torch and FAISS.",
)
def main() -> None:
    """Offline hard negatives for image-text retrieval.

    \b
    aoq run demo                    both rounds, made-up data
    aoq mine IMAGES CAPTIONS TABLE  a table of your vectors
    aoq inspect TABLE --image 17    its hardest negatives

    Where a command takes TABLE, give an experiment or a table's folder.
    """
    from aoq.pipeline.console import log_to_console
    from aoq.pipeline.settings import read_shipped_settings  # Luigi's, which help does not need

    read_shipped_settings()
    log_to_console()
