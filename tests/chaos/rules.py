"""Rules that every command keeps, whatever input it gets."""

from __future__ import annotations

import re
from pathlib import Path

from aoq.pipeline.console import is_hidden
from tests.chaos.forks import Ended

LINES = 12
"""Lines that a refusal has at most: `aoq data check` lists problems, Luigi names the tasks that failed."""
LOGGED = re.compile(r"\d\d:\d\d:\d\d (?!error:)")
"""A line of the log that is no error: where one of two branches fails, Luigi goes on with the other."""
INTERNALS = re.compile(r"allow_pickle|Traceback|Segmentation|Fatal Python|core dumped|Exception ignored|Aborted!")


class BrokenError(Exception):
    """A case breaks a rule."""


def hold(broke: str | None, what: str = "") -> None:
    """Go on unless something is broken; `what` led to it."""
    if broke:
        raise BrokenError(f"{what}: {broke}" if what else broke)


def refused_well(ended: Ended) -> str | None:
    """Say what is wrong with the end of a command, refused or not; None if nothing is."""
    if ended.late:
        return f"it took more than {ended.seconds:.0f} s\n{ended.said}"
    if ended.code is None or ended.code < 0:
        return f"it ended by signal {ended.code}\n{ended.said}"
    if found := INTERNALS.search(ended.output + ended.errors):
        return f"{found[0]!r} is shown\n{ended.output[-200:]}{ended.errors[-1500:]}"
    hidden = {character for character in ended.output + ended.errors if is_hidden(character)}
    if hidden:
        return f"{sorted(map(ascii, hidden))} reach the terminal\n{ended.said!a}"
    if ended.code != 0 and not ended.errors.strip():
        return f"exit code {ended.code} without a word"
    after = ended.errors[ended.errors.find("error:") :].strip().splitlines()
    refusal = [line for line in after if not LOGGED.match(line)]
    if ended.code != 0 and len(refusal) > LINES:
        return f"{len(refusal)} lines of refusal\n{ended.said}"
    return None


def failed(ended: Ended) -> str | None:
    return None if ended.code == 0 else f"it ends with {ended.code}\n{ended.said}"


def nothing_left(folder: Path, before: set[str]) -> str | None:
    """Name what a refused command left in its folder."""
    left = {path.name for path in folder.iterdir()} - before
    return f"it left {sorted(left)}" if left else None
