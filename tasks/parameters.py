"""Parameters that the help lists once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import luigi


class Described(luigi.Parameter):
    """Text that Luigi accepts as --experiment and as --SecondRound-experiment; the help lists only the first."""

    @classmethod
    def _parser_kwargs(cls, param_name: str, task_name: str | None = None) -> dict[str, Any]:
        options: dict[str, Any] = super()._parser_kwargs(param_name, task_name)  # type: ignore[no-untyped-call]
        return {**options, "action": _Unlisted} if task_name else options


class _Unlisted(argparse.Action):
    """Store a value; the help does not list the option."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, **{**options, "help": argparse.SUPPRESS})

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
