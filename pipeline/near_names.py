"""Suggestions for names that do not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names what is spelt alike; empty where nothing is.

    >>> did_you_mean("demmo", ["demo", "f30k_scan"])
    "did you mean 'demo'?"
    """
    near = get_close_matches(name, list(known))
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""
