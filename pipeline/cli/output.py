"""Printing: text of unknown origin is escaped, so it neither controls the terminal nor counts as rich's markup."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from itertools import compress
from typing import Any

import click
import rich.console
from click.core import ParameterSource
from rich.filesize import decimal as decimal
from rich.table import Table
from rich.text import Text

from aoq.pipeline.console import visible

SHORT_ROUNDS = {"one": "first_round", "two": "second_round"}
"""Short names of the trainings; other stages have none."""
WIDE = 10_000
"""Width of a terminal on which every table fits, in columns."""
_console = partial(rich.console.Console, highlight=False, markup=False, emoji=False)


def echo(text: object, *, err: bool = False) -> None:
    click.echo(visible(str(text)), err=err)


def echo_json(content: Any) -> None:
    """Print JSON in ASCII, which stays valid in any terminal's encoding."""
    finite = json.loads(json.dumps(content), parse_constant=lambda _: None)  # JSON has no NaN
    click.echo(json.dumps(finite, indent=1).replace("\x7f", r"\u007f"))


def echo_next(*commands: str) -> None:
    """Suggest on stderr to run one of these commands next."""
    for number, command in enumerate(commands):
        echo(f"{'  or:' if number else 'next:'} {command}", err=True)


def is_typed(option: str) -> bool:
    """Return whether the user typed the option of the current command."""
    return click.get_current_context().get_parameter_source(option) is ParameterSource.COMMANDLINE


def command_line(*words: str, override: bool = True) -> str:
    """Return a command line with the --override, if the command takes one, and the folders that the user typed."""
    options, names = click.get_current_context().params, [*["override"] * override, "data_root", "artifact_root"]
    typed = [name for name in names if options.get(name) and is_typed(name)]
    named = {f"--{name.replace('_', '-')}": str(options[name]) for name in typed}
    return shlex.join([*words, *(word for option in named.items() if option[0] not in words for word in option)])


def to_make(stage: str, experiment: str = "") -> str:
    """Return the command that makes a stage, by default for the current command's experiment."""
    experiment = experiment or str(click.get_current_context().params["experiment"])
    if stage == "evaluation":
        return command_line("aoq", "evaluate", experiment)
    rounds = {stage: short for short, stage in SHORT_ROUNDS.items()}
    choice = [] if stage == "second_round" else ["--round", rounds.get(stage, stage)]
    return command_line("aoq", "run", experiment, *choice)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number with its noun.

    >>> counted(1, "error"), counted(2, "error")
    ('1 error', '2 errors')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def styled(*parts: str | tuple[str, str]) -> Text:
    """Return a line of parts, each a text or a text with its style."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text), style) for text, style in pairs))


def say(*parts: str | tuple[str, str], style: str = "") -> None:
    """Print a line of parts, without breaking it."""
    _console().print(styled(*parts), style=style, soft_wrap=True)


def show_rows(
    headers: Sequence[str],
    rows: Iterable[Sequence[str | Text]],
    *,
    title: str = "",
    right: Collection[str] = (),
    width: int | None = None,
) -> None:
    """Print a table; if it is too wide, narrow the gaps, then wrap the widest columns.

    Columns in `right` are aligned to the right. Empty columns and empty header rows are left out.
    """
    rows = list(rows)
    shown = [any(column) for column in zip(*rows, strict=True)] or [True] * len(headers)
    console = _console(width=width)
    table = Table(title=styled(title) if title else None, title_justify="left", box=None, header_style="bold")
    table.pad_edge, table.padding, table.show_header = False, (0, 2, 0, 0), any(headers)
    for header in compress(headers, shown):
        table.add_column(styled(header), justify="right" if header in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else styled(cell) for cell in compress(row, shown)))
    if console.measure(table, options=console.options.update(width=WIDE)).maximum > console.width:
        table.padding = (0, 1, 0, 0)
    console.print(table)
