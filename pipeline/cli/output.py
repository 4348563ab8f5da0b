"""Printing: no text is obeyed by the terminal or read as markup, wherever it is from."""

from __future__ import annotations

import json
from typing import Any

import click
import rich.console
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from aoq.pipeline.terminal import visible


def echo(text: object, *, err: bool = False) -> None:
    """Print a plain line."""
    click.echo(visible(str(text)), err=err)


def echo_next(*commands: str, then: bool = False) -> None:
    """Print on stderr how to go on, a line per command; each is a choice, unless one comes after the other."""
    others = "then:" if then else "  or:"
    for lead, command in zip(("next:", *[others] * len(commands)), commands, strict=False):
        echo(f"{lead} {command}", err=True)


def counted(count: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> counted(1, "error"), counted(2, "error")
    ('1 error', '2 errors')
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def echo_json(content: Any) -> None:
    """Print JSON in ASCII, so that whatever shows it keeps it valid."""
    click.echo(json.dumps(content, indent=1).replace("\x7f", r"\u007f"))


def styled(*parts: str | tuple[str, str]) -> Text:
    """Parts of a line, each a text or a text with its style."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text), style) for text, style in pairs))


class Console(rich.console.Console):
    """Tables, and lines between them."""

    def __init__(self, *, width: int | None = None) -> None:
        super().__init__(width=width, highlight=False, markup=False, emoji=False)

    def print_table(self, table: Table) -> None:
        """Print the table; what is too wide wraps its longest column, or becomes a block of lines for each row."""
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
                if said := self._text(cells[number]):
                    self.print(Text.assemble("  ", self._text(header), ": " if header else "", said))

    def _text(self, cell: Any) -> Text:
        return cell if isinstance(cell, Text) else self.render_str(str(cell))

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text that is printed, and every cell, title and header of a table."""
        return super().render_str(visible(text), **options)
