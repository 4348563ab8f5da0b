"""Make text of unknown origin safe for a terminal and for pages."""

from __future__ import annotations

import io
import sys
import unicodedata
from typing import Any

OBEYED = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Categories of invisible characters: controls, directions, private and half characters, line separators."""
KEPT = frozenset("\n\t\u200c\u200d")
"""Line ends and tabs, and the joiners that Persian, Hindi and emoji are written with."""


def visible(text: str) -> str:
    r"""Escape every character that a terminal would obey rather than show.

    >>> print(visible("a\x1b[31m caption \u202eof\x00 ours"))
    a\x1b[31m caption \u202eof\x00 ours
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def visible_value(value: Any) -> Any:
    """Convert a value for a page: hidden characters are escaped, markup stays markup."""
    shown = visible(str(value))
    return type(value)(shown) if hasattr(value, "__html__") else shown


def is_hidden(character: str) -> bool:
    """Return whether a terminal obeys the character rather than showing it."""
    return character not in KEPT and unicodedata.category(character) in OBEYED


def escape_what_the_terminal_lacks() -> None:
    """Make stdout escape characters that its encoding lacks, as stderr does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _shown(character: str) -> str:
    if character.isprintable() or not is_hidden(character):
        return character
    return character.encode("unicode_escape").decode()
