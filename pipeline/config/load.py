"""Load experiments by name: TOML files, changes to them, and errors in the user's own terms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

import aoq
from aoq.pipeline.config.dataset import TRAINING_DATA
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.section import NamedSection
from aoq.pipeline.config.tables import Ensemble, Fusing, Reranking
from aoq.pipeline.near_names import did_you_mean
from aoq.pipeline.reading import parse_toml, read_toml

CONFIGS = (Path("configs"), Path(aoq.__file__).parent / "configs")
"""Folders of experiments: those in the current directory take precedence over shipped ones of the same name."""

B = TypeVar("B", bound=BaseModel)
Combination = Ensemble | Reranking | Fusing
KINDS: dict[str, type[Combination]] = {"ensemble": Ensemble, "rerank": Reranking, "fusion": Fusing}
"""Kinds of files without rounds, by the section that marks them."""
WORLDS = {"folder", "source", "demo"}
"""Options of [dataset] of which one is given."""
NAMING = ("teacher", "shortlist", "members")
"""Options that name other experiments."""


def names_in(folders: tuple[Path, ...] = CONFIGS) -> list[str]:
    """Names of the experiments in the folders, or of the studies in theirs."""
    return sorted({path.stem for folder in folders for path in folder.glob("*.toml")})


def load_experiment(name: str, override: str = "", configs: tuple[Path, ...] = CONFIGS) -> Experiment | Combination:
    """Load the experiment in `configs/<name>.toml`, or in the TOML file `name`; its sections tell its kind.

    `override` is the inside of a TOML inline table, e.g. `seed=1, second_round.loss.name="offtri"`. If it changes the
    training data, it changes those of the experiments that are named here too: the table's and the student's are the
    same.
    """
    path, content = read_named("experiment", name, configs)
    change = parse_override(override)
    _check_has_rounds(name, content, change)
    content, passed = _with_data(content, change), _passed_on(change)
    section = next((section for section in KINDS if section in content), "")
    kind = KINDS.get(section)
    if passed and kind:
        members = _passing_on(passed, content[section], change.get(section), configs)
        content = {**_without(passed, content, kind), section: members}
    elif passed:
        content = _passing_on(passed, content, change, configs)
    return validated(kind, path, content) if kind else validated(Experiment, path, content)


def _check_has_rounds(name: str, content: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    """Refuse changes of a table's making to an experiment that takes its teacher's table."""
    teacher = change.get("teacher", content.get("teacher"))
    for section in ("first_round", "mining"):
        if teacher and section in change and section not in content:
            example = override_text({section: change[section]}) if isinstance(change[section], Mapping) else "…"
            raise ValueError(
                f"{name} has no [{section}]: it takes the table of {teacher!r}. Change that one, with "
                f"""teacher='{teacher}{", " if "@" in str(teacher) else "@"}{example}'."""
            )


def split_member(name: str) -> tuple[str, str]:
    """Split NAME@OVERRIDE; without an `@`, the override is empty."""
    name, _, override = name.partition("@")
    return name, override


def _passed_on(change: Mapping[str, Any]) -> dict[str, Any]:
    """Take out of a change what the experiments named in a file share with it; nothing if its pairs stay the same."""
    data = change.get("dataset")
    if not isinstance(data, Mapping) or not data.keys() & {*TRAINING_DATA}:
        return {}
    passed = {"dataset": {key: value for key, value in data.items() if key in (*TRAINING_DATA, "dev")}}
    return passed | {key: change[key] for key in ("evaluation",) if key in change}  # its split is one of these data


def _passing_on(passed: Mapping[str, Any], content: Any, change: Any, configs: tuple[Path, ...]) -> Any:
    """Pass the change on to the experiments that the section names; what `change` itself says of one wins."""

    def changed(value: Any, given: bool) -> Any:
        if isinstance(value, list):
            return [changed(each, given) for each in value]
        return _changed(value, passed, given, configs) if isinstance(value, str) else value

    if not isinstance(content, Mapping):
        return content
    given = change if isinstance(change, Mapping) else {}
    return {key: changed(value, key in given) if key in NAMING else value for key, value in content.items()}


def _without(passed: Mapping[str, Any], content: Mapping[str, Any], kind: type[Combination]) -> dict[str, Any]:
    """Leave out what the members take over and a file of this kind has not; options that they don't are refused."""
    rest = {key: value for key, value in content["dataset"].items() if key not in passed["dataset"]}
    own = {key: value for key, value in content.items() if key in kind.model_fields or key not in passed}
    return own | ({"dataset": rest} if rest else {})


def _changed(asked: str, passed: Mapping[str, Any], own_wins: bool, configs: tuple[Path, ...]) -> str:
    """Name the experiment with the change, or as it is if the change says what it says already."""
    name, override = split_member(asked)
    own = parse_override(override)
    content = _with_data(read_named("experiment", name, configs)[1], own)
    both = _with_data(passed, own) if own_wins else _with_data(own, passed)
    return asked if _with_data(content, both) == content else f"{name}@{override_text(both)}"


def _with_data(content: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the change into an experiment; data of one kind replace those of another."""
    result, data = merged(content, change), change.get("dataset")
    if isinstance(data, Mapping) and (given := data.keys() & WORLDS):
        old = WORLDS - given
        result["dataset"] = {key: value for key, value in result["dataset"].items() if key not in old}
    return result


def validated(kind: type[B], path: Path, content: Mapping[str, Any]) -> B:
    """Validate a file's content; the file's name is the default name."""
    try:
        return kind.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        raise ValueError(f"{path}: {explain(kind, error, content)}") from None


def read_named(what: str, name: str, folders: tuple[Path, ...]) -> tuple[Path, dict[str, Any]]:
    """Read the first TOML file `<name>.toml` in the folders, or the file `name`; return its path and content."""
    named = [Path(name)] if name.endswith(".toml") else [folder / f"{name}.toml" for folder in folders]
    path = next((path for path in named if path.exists()), None)
    if path is not None and not path.stem.strip("."):
        raise ValueError(f"the {what} file {path} has no name before .toml, and runs are named so; give it one.")
    if path is None and name.endswith(".toml"):
        raise ValueError(f"there is no {what} file {Path(name).absolute()}.")
    if path is None:
        known = names_in(folders)
        if question := did_you_mean(name, known):
            raise ValueError(f"unknown {what} {name!r}; {question} `aoq list` shows all.")
        raise ValueError(f"unknown {what} {name!r}; known are {known}, or give the path of a .toml file.")
    return path, read_toml(path)


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


def merged(content: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the change into the content, section by section; the change's values win."""
    result = dict(content)
    for key, value in change.items():
        # A section with a new `name` is another kind of section: its old options go.
        is_part = isinstance(value, dict) and isinstance(content.get(key), dict) and "name" not in value
        result[key] = merged(content[key], value) if is_part else value
    return result


def explain(kind: type[BaseModel], error: ValidationError, content: Mapping[str, Any] | None = None) -> str:
    """Describe each problem in one sentence, with the section as the user writes it and the keys it allows.

    `content` is the refused content; a section with a `name` allows the keys of its kind.
    """
    unknown: dict[tuple[str, ...], list[str]] = {}
    sentences = []
    problems = [(tuple(map(str, problem["loc"])), problem) for problem in error.errors()]
    for place, problem in problems:
        if problem["type"] == "extra_forbidden":
            unknown.setdefault(place[:-1], []).append(place[-1])
        elif problem["type"] != "too_short" or not any(
            other != place and other[: len(place)] == place for other, _ in problems
        ):  # a list with a wrong item is also reported as too short: only the valid items count
            written = f"{'.'.join(place)}: " if place else ""  # problems of several sections name them themselves
            given = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
            said = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "valid array")  # TOML's term
            sentences.append(f"{written}{said}{given}")
    for place, keys in unknown.items():
        section = f"[{'.'.join(place)}]" if place else "the top level"
        sentences.append(f"{section} has unknown keys {keys}; allowed keys are {_allowed_keys(kind, place, content)}")
    return "; ".join(sentences)


def _allowed_keys(section: type[BaseModel], place: tuple[str, ...], content: Any) -> list[str]:
    for part in place:
        content = content.get(part) if isinstance(content, Mapping) else None
        if part in section.model_fields:  # else a key of a table of sections
            choices = _sections_in(section.model_fields[part].annotation)
            section = choices[0] if len(choices) == 1 else section
            if issubclass(section, NamedSection) and isinstance(content, Mapping):
                section = section.kind(content["name"])
    return sorted(section.model_fields)


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _sections_in(argument)]
