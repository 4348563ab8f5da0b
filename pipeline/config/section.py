"""Base classes of all sections of an experiment's file, and value types that several share."""

from __future__ import annotations

import inspect
import sys
import typing
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, create_model, model_validator

T = TypeVar("T")
Array = Annotated[tuple[T, ...], Field(strict=False)]  # TOML's arrays are lists
Margin = Annotated[float, Field(ge=0.0, le=2.0)]


class Section(BaseModel):
    """A TOML section: frozen; unknown keys, types and ranges are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class NamedSection(Section):
    """A section whose `name` selects one of several kinds, each a subclass with its own options."""

    name: str
    """The kind."""

    @classmethod
    @abstractmethod
    def kind(cls, name: str) -> type[NamedSection]:
        """Find the section of that name; an unknown one is an error that lists the known ones."""

    @model_validator(mode="wrap")
    @classmethod
    def _as_its_kind(cls, given: Any, validate: ModelWrapValidatorHandler[NamedSection]) -> NamedSection:
        kind = cls.kind(str(given.get("name", ""))) if isinstance(given, Mapping) else cls
        return validate(given) if kind is cls else kind.model_validate(given)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by content: a derived section's class is in no module, and another process derives it anew."""
        (named, *_) = (
            base for base in type(self).__mro__ if getattr(sys.modules[base.__module__], base.__name__, 0) is base
        )
        return named.model_validate, (self.model_dump(),)


S = TypeVar("S", bound=NamedSection)


def registered(what: str, name: str, registry: Mapping[str, T], written: Mapping[str, Any]) -> T:
    """Look up a name in the registry; an unknown one is an error that lists all names, the `written` ones first."""
    if name not in registry:
        known = [*written, *sorted(registry.keys() - written.keys())]
        raise ValueError(f"there is no {what} {name!r}; known are {', '.join(map(repr, known))}")
    return registry[name]


def derive_section(name: str, base: type[S], options: Mapping[str, Any], **about: bool) -> type[S]:
    """Derive the section of a registry's entry without one: its `options` with defaults, and class variables."""
    section = create_model(f"{base.__name__}_{name}", __base__=base, **options)
    for variable, value in about.items():
        setattr(section, variable, value)
    return section


def keyword_options(function: Callable[..., Any]) -> dict[str, tuple[Any, Any]]:
    """Type and default (... if there is none) of each keyword-only parameter.

    >>> def spread(pairs: int, *, margin: float = 0.2, steps: int) -> float: ...
    >>> keyword_options(spread)
    {'margin': (<class 'float'>, 0.2), 'steps': (<class 'int'>, Ellipsis)}
    """
    types = typing.get_type_hints(function)
    return {
        name: (types.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
