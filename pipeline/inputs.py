"""Inputs of a build: checked when opened, and again before the result is published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from typing_extensions import TypedDict

from aoq.pipeline.digests import known_sha256

Check = Callable[[], str]
"""Returns the current content of an input; raises a ValueError if it differs from what was recorded."""


Verify = Literal["sampled", "full"]
"""How large arrays of the data folder are compared with what was read first."""
SAMPLED = "sampled:"
"""Prefix of the hash of an array of which only blocks were compared."""
PLANNED_REMEDY = "was changed after the run was planned; run again."


class ChangedInputError(ValueError):
    """Unfinished work was begun on other bytes than those present."""


class BegunOn(TypedDict):
    """File in which unfinished work records its inputs."""

    inputs: dict[str, str]


@dataclass
class Inputs:
    """Inputs of one build by name, with the content of each.

    `begun_on` holds the inputs of all runs on the unfinished work; `keep` records them beside it.
    """

    keep: Callable[[Mapping[str, str]], None]
    begun_on: dict[str, str] = field(default_factory=dict)
    content: dict[str, str] = field(default_factory=dict)
    _checks: dict[str, Check] = field(default_factory=dict)

    def add(self, name: str, content: str, check: Check) -> None:
        """Record an input; a full check replaces one by blocks."""
        if name not in self.begun_on:
            self.begun_on[name] = content
            self.keep(self.begun_on)
        if self.begun_on[name].removeprefix(SAMPLED) != content.removeprefix(SAMPLED):
            raise ChangedInputError(f"the interrupted work was begun on another {name}; it is deleted: run again.")
        if name not in self.content or not content.startswith(SAMPLED):
            self.content[name], self._checks[name] = content, check

    def check_again(self) -> None:
        """Raise ChangedInputError if an input changed since it was opened."""
        for name, check in self._checks.items():
            try:
                current = check()
            except ValueError as error:  # an OSError does not mean that the content changed
                raise ChangedInputError(f"while it was read: {error}") from None
            if current != self.content[name]:
                raise ChangedInputError(f"{name} was changed while it was read; run again.")


_current: ContextVar[Inputs | None] = ContextVar("inputs of the build under way", default=None)


@contextmanager
def collected(inputs: Inputs) -> Iterator[None]:
    """Add everything opened inside the block to `inputs`."""
    token = _current.set(inputs)
    try:
        yield
    finally:
        _current.reset(token)


def take_in(name: str, check: Check) -> None:
    """Check an input before it is read, and record it with the build in progress, if any."""
    content, inputs = check(), _current.get()
    if inputs is not None:
        inputs.add(name, content, check)


def take_in_planned(
    name: str, planned: str, current: Callable[[], str], subject: object, remedy: str = PLANNED_REMEDY
) -> None:
    """Take in an input that a key depends on; refuse the `subject` if its content changed since."""

    def check() -> str:
        if current() != planned:
            raise ValueError(f"{subject} {remedy}")
        return planned

    take_in(name, check)


def planned_file(folder: Path, name: str, sha256: str) -> Path:
    """Return a user's file that a key depends on; refuse it if it changed since."""
    take_in_planned(f"data/{name}", sha256, partial(known_sha256, folder / name), folder / name)
    return folder / name
