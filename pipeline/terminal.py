"""Text of unknown origin, made safe for terminals and pages; suggestions for misspelt names."""

from __future__ import annotations

import io
import sys
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Categories of invisible characters: controls, formats, private use, surrogates, line and paragraph separators."""
ALLOWED = frozenset("\n\t\u200c\u200d")
"""Newlines and tabs, and the joiners that Persian, Hindi and emoji need."""


def visible(text: str) -> str:
    r"""Escape every character that a terminal would obey rather than show.

    >>> print(visible("a\x1b[31m caption \u202eof\x00 ours"))
    a\x1b[31m caption \u202eof\x00 ours
    """
    if text.isprintable():
        return text
    shown = (one if one.isprintable() or not is_hidden(one) else one.encode("unicode_escape").decode() for one in text)
    return "".join(shown)


def visible_value(value: Any) -> Any:
    """Convert a value for a page: hidden characters are escaped, markup stays markup."""
    shown = visible(str(value))
    return type(value)(shown) if hasattr(value, "__html__") else shown


def is_hidden(character: str) -> bool:
    """Return whether a terminal obeys the character rather than showing it."""
    return character not in ALLOWED and unicodedata.category(character) in HIDDEN


def escape_what_the_terminal_lacks() -> None:
    """Make stdout escape characters that its encoding lacks, as stderr does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean …?" suggestion, or an empty string.

    >>> did_you_mean("demmo", ["demo", "f30k_scan"])
    "did you mean 'demo'?"
    """
    close = get_close_matches(name, list(known))
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""
