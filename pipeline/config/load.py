"""Experiments by name: TOML files, changes to them, and mistakes said in the user's own words."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

import aoq
from aoq.pipeline.config.combinations import Ensemble, Fusing, Reranking
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.section import NamedSection

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIGS = Path(aoq.__file__).parent / "configs"


Combination = Ensemble | Reranking | Fusing
KINDS: dict[str, type[Combination]] = {"ensemble": Ensemble, "rerank": Reranking, "fusion": Fusing}
"""What a file with such a section is, in place of an experiment with rounds."""


def names_in(folder: Path = CONFIGS) -> list[str]:
    """Of the experiments in the folder, or of the studies in theirs."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load_experiment(name: str, override: str = "", configs: Path = CONFIGS) -> Experiment | Combination:
    """The experiment in `configs/<name>.toml`, or in the TOML file `name`, of the kind that its sections tell.

    `override` is the inside of a TOML inline table, e.g. `seed=1, second_round.loss.name="offtri"`.
    """
    path, content = read_named("experiment", name, configs)
    if override:
        merge(content, parse_override(override))
    kind: type[Experiment | Combination] = next((KINDS[section] for section in KINDS if section in content), Experiment)
    try:
        return kind.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        raise ValueError(f"{path}: {explain(kind, error, content)}") from None


def read_named(what: str, name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The TOML file `<name>.toml` in the folder, or the file `name`, and what it says."""
    path = Path(name) if name.endswith(".toml") else folder / f"{name}.toml"
    if not path.is_file() and name.endswith(".toml"):
        raise ValueError(f"there is no {what} file {path.absolute()}.")
    if not path.is_file():
        raise ValueError(f"unknown {what} {name!r}; known are {names_in(folder)}, or give the path of a .toml file.")
    try:
        return path, tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not TOML: {error}") from None


def parse_override(override: str) -> dict[str, Any]:
    """The inside of a TOML inline table."""
    try:
        return dict(tomllib.loads(f"override = {{{override}}}")["override"])
    except tomllib.TOMLDecodeError as error:
        raise ValueError(
            f"override {override!r} is not the inside of a TOML inline table, "
            f'such as `seed=1, second_round.loss.name="offtri"`: {error}'
        ) from None


def override_text(change: Mapping[str, Any]) -> str:
    """The change as `--override` takes it.

    >>> override_text({"seed": 1, "second_round": {"loss": {"name": "offtri"}, "decay_epochs": [3]}})
    'seed=1, second_round.loss.name="offtri", second_round.decay_epochs=[3]'
    """
    return ", ".join(f"{key}={_written(key, value)}" for key, value in _leaves(change))


def _written(key: str, value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(f"{key} = {value} is no value that an experiment has") from None


def _leaves(change: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in change.items():
        if isinstance(value, Mapping) and value:
            yield from ((f"{key}.{rest}", leaf) for rest, leaf in _leaves(value))
        else:
            yield key, value


def merge(content: dict[str, Any], override: dict[str, Any]) -> None:
    """Put the override's values in place of the content's, section by section."""
    for key, value in override.items():
        if isinstance(value, dict) and isinstance(content.get(key), dict) and "name" not in value:
            merge(content[key], value)
        else:  # a section that gets a new `name` is another kind of thing: its old options go
            content[key] = value


def explain(kind: type[BaseModel], error: ValidationError, content: Mapping[str, Any] | None = None) -> str:
    """One sentence per problem, with the section as the user writes it and the keys it allows.

    `content` is what was refused; a section with a `name` allows the keys of its kind.
    """
    unknown: dict[tuple[str, ...], list[str]] = {}
    sentences = []
    problems = error.errors()
    for problem in problems:
        if problem["type"] == "too_short" and any(_is_below(problem["loc"], other["loc"]) for other in problems):
            continue  # it counts the valid ones
        place = tuple(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            unknown.setdefault(place[:-1], []).append(place[-1])
            continue
        written = ".".join(place) or "the file"
        given = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
        said = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "valid array")  # as TOML calls it
        sentences.append(f"{written}: {said}{given}")
    for place, keys in unknown.items():
        section = f"[{'.'.join(place)}]" if place else "the top level"
        sentences.append(f"{section} has unknown keys {keys}; allowed keys are {_allowed_keys(kind, place, content)}")
    return "; ".join(sentences)


def _is_below(place: tuple[int | str, ...], other: tuple[int | str, ...]) -> bool:
    return len(other) > len(place) and other[: len(place)] == place


def _allowed_keys(section: type[BaseModel], place: tuple[str, ...], content: Any) -> list[str]:
    for part in place:
        content = content.get(part) if isinstance(content, Mapping) else None
        if part in section.model_fields:  # else the key of a table of sections
            choices = _sections_in(section.model_fields[part].annotation)
            section = choices[0] if len(choices) == 1 else section
            if issubclass(section, NamedSection) and isinstance(content, Mapping):
                section = section.kind(content["name"])
    return sorted(section.model_fields)


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in _sections_in(argument)]
