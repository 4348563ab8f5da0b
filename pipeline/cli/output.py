"""What commands say: nothing in it is obeyed by the terminal or read as markup, wherever it is from."""

from __future__ import annotations

import json
from typing import Any

import click
import rich.console
from rich.text import Text

from aoq.pipeline.terminal import visible


def echo(text: object, *, err: bool = False) -> None:
    """A plain line."""
    click.echo(visible(str(text)), err=err)


def echo_json(content: Any) -> None:
    """JSON in ASCII, so that whatever shows it keeps it valid."""
    click.echo(json.dumps(content, indent=1).replace("\x7f", r"\u007f"))


def styled(*parts: str | tuple[str, str]) -> Text:
    """Parts of a line, each a text or a text with its style."""
    pairs = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text), style) for text, style in pairs))


class Console(rich.console.Console):
    """Tables, and lines between them."""

    def __init__(self, *, width: int | None = None) -> None:
        super().__init__(width=width, highlight=False, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every text that is printed, and every cell, title and header of a table."""
        return super().render_str(visible(text), **options)
