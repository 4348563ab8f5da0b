"""Overrides: changes to an experiment, written as the inside of a TOML inline table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from aoq.pipeline.reading import parse_toml

WORLDS = {"folder", "source", "demo"}
"""Options of [dataset] of which one is given."""


def split_member(name: str) -> tuple[str, str]:
    """Split NAME@OVERRIDE; without an `@`, the override is empty."""
    name, _, override = name.partition("@")
    return name, override


def parse_override(override: str) -> dict[str, Any]:
    """Parse the inside of a TOML inline table."""
    try:
        return dict(parse_toml(f"override = {{{override}}}")["override"])
    except ValueError as error:
        raise ValueError(
            f"override {override!r} is not the inside of a TOML inline table, "
            f'such as `seed=1, second_round.loss.name="offtri"`: {error}'
        ) from None


def override_text(change: Mapping[str, Any]) -> str:
    """Write the change as `--override` takes it.

    >>> override_text({"seed": 1, "second_round": {"loss": {"name": "offtri"}, "decay_epochs": [3]}})
    'seed=1, second_round.loss.name="offtri", second_round.decay_epochs=[3]'
    """
    return ", ".join(_leaves(change))


def _leaves(change: Mapping[str, Any], place: str = "") -> Iterator[str]:
    for key, value in change.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{place}{_key(key)}.")
            continue
        try:
            yield f"{place}{_key(key)}={json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        except (TypeError, ValueError):
            raise ValueError(f"{place}{key} = {value} is no value that an experiment has") from None


def _key(key: str) -> str:
    """Quote a key that TOML does not take bare."""
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def changed_by(content: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the change into an experiment; data of one kind replace those of another."""
    result, data = merged(content, change), change.get("dataset")
    if isinstance(data, Mapping) and (given := data.keys() & WORLDS):
        old = WORLDS - given
        result["dataset"] = {key: value for key, value in result["dataset"].items() if key not in old}
    return result


def merged(content: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the change into the content, section by section; the change's values win."""
    result = dict(content)
    for key, value in change.items():
        # A section with a new `name` is another kind of section: its old options go.
        is_part = isinstance(value, dict) and isinstance(content.get(key), dict) and "name" not in value
        result[key] = merged(content[key], value) if is_part else value
    return result
