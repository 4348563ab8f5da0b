"""A change of the training data reaches every experiment that a file names: a table's data are its student's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from aoq.pipeline.config.dataset import TRAINING_DATA
from aoq.pipeline.config.named_files import read_named
from aoq.pipeline.config.overrides import changed_by, override_text, parse_override, split_member

NAMING = ("teacher", "shortlist", "members")
"""Options that name other experiments."""
OF_WORDS = ("vocabulary_splits", "min_count")
"""Options of [dataset] that say which words of the captions are known."""
PASSED = (*TRAINING_DATA, "dev", *OF_WORDS)
"""Options of [dataset] that are passed on when one of TRAINING_DATA is changed."""


def passed_on(change: Mapping[str, Any]) -> dict[str, Any]:
    """Take out of a change what the experiments named in a file share with it; nothing if its pairs stay the same."""
    data = change.get("dataset")
    if not isinstance(data, Mapping) or not data.keys() & {*TRAINING_DATA}:
        return {}
    passed = {"dataset": {key: value for key, value in data.items() if key in PASSED}}
    return passed | {key: change[key] for key in ("evaluation",) if key in change}  # its split is one of these data


def passing_on(passed: Mapping[str, Any], content: Any, change: Any, configs: tuple[Path, ...]) -> Any:
    """Pass the change on to the experiments that the section names; what `change` itself says of one wins."""

    def changed(value: Any, given: bool) -> Any:
        if isinstance(value, list):
            return [changed(each, given) for each in value]
        return _changed(value, passed, given, configs) if isinstance(value, str) else value

    if not isinstance(content, Mapping):
        return content
    given = change if isinstance(change, Mapping) else {}
    return {key: changed(value, key in given) if key in NAMING else value for key, value in content.items()}


def without_passed(passed: Mapping[str, Any], content: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """Leave out what the members take over and a file of this kind has not; options that they don't are refused."""
    rest = {key: value for key, value in content["dataset"].items() if key not in passed["dataset"]}
    own = {key: value for key, value in content.items() if key in kind.model_fields or key not in passed}
    return own | ({"dataset": rest} if rest else {})


def _changed(asked: str, passed: Mapping[str, Any], own_wins: bool, configs: tuple[Path, ...]) -> str:
    """Name the experiment with the change, or as it is if the change says what it says already."""
    name, override = split_member(asked)
    own = parse_override(override)
    content = changed_by(read_named("experiment", name, configs)[1], own)
    said = content.get("dataset")
    if isinstance(said, Mapping) and said.keys() & {"vocabulary", "tokeniser"}:  # its words come from elsewhere
        data = {key: value for key, value in passed["dataset"].items() if key not in OF_WORDS}
        passed = {**passed, "dataset": data}
    both = changed_by(passed, own) if own_wins else changed_by(own, passed)
    return asked if changed_by(content, both) == content else f"{name}@{override_text(both)}"
