"""Validate what a file says; errors are in the user's own terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from aoq.pipeline.config.section import NamedSection

B = TypeVar("B", bound=BaseModel)


def validated(kind: type[B], where: str, content: Mapping[str, Any]) -> B:
    """Validate the content; a refusal begins with where it stands."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{where}: {explain(kind, error, content)}") from None


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
