"""Printing. Text of unknown origin is escaped: the terminal obeys none of it, and rich reads none of it as markup."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import click
import rich.console
from click.core import ParameterSource
from rich.cells import cell_len
from rich.table import Column, Table
from rich.text import Text

from aoq.pipeline.terminal import visible

ROUNDS = {"one": "first_round", "two": "second_round"}
"""Short names of the trainings; other stages go by their own names."""


def echo(text: object, *, err: bool = False) -> None:
    """Print a plain line."""
    click.echo(visible(str(text)), err=err)


def echo_json(content: Any) -> None:
    """Print JSON in ASCII, so that whatever shows it keeps it valid."""
    click.echo(json.dumps(content, indent=1).replace("\x7f", r"\u007f"))


def echo_next(*commands: str, then: bool = False) -> None:
    """Suggest on stderr what to run next: one of these commands, or with `then` one after the other."""
    others = "then:" if then else "  or:"
    for lead, command in zip(("next:", *[others] * len(commands)), commands, strict=False):
        echo(f"{lead} {command}", err=True)


def typed(*words: str) -> str:
    """Return a command line, with the --override and the folders that the current command was given."""
    context = click.get_current_context()
    more = []
    for name in ("override", "data_root", "artifact_root"):
        value = context.params.get(name)
        if value and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            more += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, *more])


def to_make(stage: str, experiment: str = "") -> str:
    """Return the command that makes a stage; by default of the experiment that the current command was given."""
    experiment = experiment or str(click.get_current_context().params["experiment"])
    if stage == "evaluation":
        return typed("aoq", "evaluate", experiment)
    rounds = {named: round_ for round_, named in ROUNDS.items()}
    return typed("aoq", "run", experiment, *([] if stage == "second_round" else ["--round", rounds.get(stage, stage)]))


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "error"), counted(2, "error")
    ('1 error', '2 errors')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def styled(*parts: str | tuple[str, str]) -> Text:
    """A line of parts, each a text or a text with its style."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text), style) for text, style in pairs))


def say(*parts: str | tuple[str, str], style: str = "") -> None:
    """Print a line of parts, as long as it is."""
    Console().print(styled(*parts), style=style, soft_wrap=True)


def show_rows(
    columns: Sequence[str | Column], rows: Iterable[Sequence[str | Text]], *, title: str = "", width: int | None = None
) -> None:
    """Print rows under their columns' headers; columns without any header show none."""
    is_headed = any(column if isinstance(column, str) else column.header for column in columns)
    table = Table(*columns, title=title or None, box=None, pad_edge=False, show_header=is_headed)
    table.title_justify, table.header_style = "left", "bold"
    for row in rows:
        table.add_row(*row)
    Console(width=width).print_table(table)


class Console(rich.console.Console):
    """Tables, and lines between them."""

    def __init__(self, *, width: int | None = None) -> None:
        super().__init__(width=width, highlight=False, markup=False, emoji=False)

    def print_table(self, table: Table) -> None:
        """Print a table; one that is too wide wraps its widest column, or becomes a block of lines for each row."""
        texts = [[self._text(cell).plain for cell in (column.header, *column.cells)] for column in table.columns]
        widths = [max(cell_len(line) for text in column for line in text.split("\n")) for column in texts]
        gap = 2 if sum(widths) + 2 * (len(widths) - 1) <= self.width else 1
        widest = widths.index(max(widths))
        left = self.width - sum(widths) - gap * (len(widths) - 1) + widths[widest]
        words = [word for text in texts[widest] for word in text.split()]
        if left < max(map(cell_len, words), default=0):
            self._print_blocks(table)
            return
        table.padding = (0, gap, 0, 0)
        for column, width in zip(table.columns, widths, strict=True):
            column.width = width
        table.columns[widest].width = min(widths[widest], left)
        table.columns[widest].no_wrap = False
        self.print(table)

    def _print_blocks(self, table: Table) -> None:
        if table.title:
            self.print(table.title, style="italic")
        lead, *others = [(column.header, list(column.cells)) for column in table.columns]
        for number, first in enumerate(lead[1]):
            self.print(self._text(first), style="bold")
            for header, cells in others:
                if text := self._text(cells[number]):
                    self.print(Text.assemble("  ", self._text(header), ": " if header else "", text))

    def _text(self, cell: Any) -> Text:
        return cell if isinstance(cell, Text) else self.render_str(str(cell))

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text that is printed, and every cell, title and header of a table."""
        return super().render_str(visible(text), **options)
