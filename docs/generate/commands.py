"""The command-line reference: every command that is not hidden, with its options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from html import escape

import click

from aoq.pipeline.cli import main

HEAD = """# Command line

Options of the form `--name` may come in any order, before or after the arguments.
"""
NAME = "aoq"
MARKS = re.compile(r"([\\*_\[\]])")


def page() -> str:
    return "\n".join([HEAD, *(_section(path, command) for path, command in walk(main))])


def walk(group: click.Group, path: str = NAME) -> Iterator[tuple[str, click.Command]]:
    """Yield each command below the group with its full name, in the order of the group's help."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from walk(command, f"{path} {name}")


def _section(path: str, command: click.Command) -> str:
    level = "#" * len(path.split())
    context = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    return "\n".join(
        [f"{level} {path}\n", f"```\n{usage}\n```\n", _prose(command.help or ""), _options(command, context)]
    )


def _prose(text: str) -> str:
    """Convert a help text to Markdown; paragraphs after `\\b` keep their lines."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n".join(
        f"```\n{each.removeprefix(chr(8)).strip(chr(10))}\n```\n" if each.startswith("\b") else f"{_plain(each)}\n"
        for each in paragraphs
    )


def _options(command: click.Command, context: click.Context) -> str:
    """Make a table with a row per option, and per argument that has a help text."""
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    rows = [record for record in records if record and (record[1] or record[0].startswith("-"))]
    rows = [(names.replace(" RANGE", ""), about) for names, about in rows if "--help" not in names]
    if not rows:
        return ""
    lines = [f"| `{_cell(names)}` | {_cell(_plain(about))} |" for names, about in rows]
    return "\n".join(["| option | |", "|---|---|", *lines, ""])


def _plain(text: str) -> str:
    """Escape Markdown outside backquotes."""
    parts = text.split("`")
    return "`".join(part if i % 2 else MARKS.sub(r"\\\1", escape(part, quote=False)) for i, part in enumerate(parts))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
