"""Base classes of all sections, shared value types, and validation in the user's terms."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

_CHOICES = ("literal[", "constrained-")
"""How pydantic names the choices of an option that is a word or a number."""
_ArrayItem = TypeVar("_ArrayItem")
_Model = TypeVar("_Model", bound=BaseModel)
TomlArray = Annotated[tuple[_ArrayItem, ...], Field(strict=False)]  # TOML's arrays are lists
MarginRange = Annotated[float, Field(ge=0.0, le=2.0)]


class Section(BaseModel):
    """A frozen TOML section; it refuses unknown keys, wrong types and ranges, and options that do not fit together."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def problems(self) -> Iterator[str]:
        """Yield problems of options that are valid alone; the first becomes the error."""
        yield from ()

    @model_validator(mode="after")
    def _options_fit(self) -> Section:
        if (problem := next(self.problems(), None)) is not None:
            raise ValueError(problem)
        return self

    def set_among(self, options: Iterable[str]) -> list[str]:
        """Return the options that have a value."""
        return [option for option in options if getattr(self, option) is not None]


class Runs(Section):
    name: str
    """Name of its runs; by default the file's."""


class NamedSection(Section):
    """A section whose `name` selects its kind, a subclass with its own options."""

    name: str
    """The kind."""

    @classmethod
    @abstractmethod
    def kind(cls, name: str) -> type[NamedSection]:
        """Find the section of that name; refuse an unknown name with a list of the known ones."""

    @model_validator(mode="wrap")
    @classmethod
    def _as_its_kind(cls, content: Any, validate: ModelWrapValidatorHandler[NamedSection]) -> NamedSection:
        kind = cls.kind(str(content.get("name", ""))) if isinstance(content, Mapping) else cls
        return validate(content) if kind is cls else kind.model_validate(content)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the content; another process derives the class again."""
        family = next(base for base in NamedSection.__subclasses__() if isinstance(self, base))
        return family.model_validate, (self.model_dump(),)


def check_registered(what: str, name: str, registry: Collection[str]) -> None:
    """Refuse a name that is not in the registry, with a list of those that are."""
    if name not in registry:
        raise ValueError(f"there is no {what} {name!r}; known are {', '.join(map(repr, registry))}")


def validated(kind: type[_Model], where: str, content: Mapping[str, Any]) -> _Model:
    """Validate the content; an error begins with `where`, the content's place."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{where}: {explain_refusal(kind, error, content)}") from None


def explain_refusal(kind: type[BaseModel], error: ValidationError, content: Mapping[str, Any] | None = None) -> str:
    """Describe each problem in one sentence, with the section as users write it and its allowed keys.

    A section with a `name` allows the keys of its kind; `content`, which was refused, has the name.
    """
    unknown: dict[tuple[str, ...], list[str]] = {}
    refused: dict[tuple[str, ...], tuple[list[str], str]] = {}
    problems = [(tuple(map(str, problem["loc"])), problem) for problem in error.errors()]
    with_wrong_items = {place[:-1] for place, _ in problems}  # also reported as too short
    for place, problem in problems:
        if problem["type"] == "extra_forbidden":
            unknown.setdefault(place[:-1], []).append(place[-1])
        elif problem["type"] != "too_short" or place not in with_wrong_items:
            place = place[:-1] if place[-1:] and place[-1].startswith(_CHOICES) else place
            value = "" if isinstance(problem["input"], dict) else f" (got {problem['input']!r})"
            message = problem["msg"].removeprefix("Value error, ").replace("valid tuple", "valid array")  # TOML's term
            refused.setdefault(place, ([], value))[0].append(message)
    sentences = []
    for place, (messages, value) in refused.items():
        written = f"{'.'.join(place)}: " if place else ""  # problems of several sections name these
        joined = ", or ".join([messages[0], *(each.removeprefix("Input should be ") for each in messages[1:])])
        sentences.append(f"{written}{joined}{value}")
    for place, keys in unknown.items():
        section = f"[{'.'.join(place)}]" if place else "the top level"
        sentences.append(f"{section} has unknown keys {keys}; allowed keys are {_allowed_keys(kind, place, content)}")
    return "; ".join(sentences)


def _allowed_keys(section: type[BaseModel], place: tuple[str, ...], content: Any) -> list[str]:
    for part in place:
        content = content.get(part) if isinstance(content, Mapping) else None
        if part in section.model_fields:  # otherwise a key in a table of sections
            choices = sections_in(section.model_fields[part].annotation)
            section = choices[0] if len(choices) == 1 else section
            if issubclass(section, NamedSection) and isinstance(content, Mapping):
                section = section.kind(content["name"])
    return sorted(section.model_fields)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the sections that an option's type names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for argument in get_args(annotation) for section in sections_in(argument)]
