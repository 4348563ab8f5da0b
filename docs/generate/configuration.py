"""The configuration reference: every section and option, read from the pydantic models that check them."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import aoq
from aoq.models import MODELS
from aoq.pipeline.config.experiment import Experiment
from aoq.pipeline.config.losses import SECTIONS as LOSSES
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.config.section import NamedSection, sections_in
from aoq.pipeline.config.study import Study
from aoq.pipeline.config.tables import Ensemble, Fusing, Reranking

HEAD = """# Configuration

Every section and option of an experiment, `configs/NAME.toml` or any TOML file. Unknown keys, wrong types and values
out of range are refused. An option that is neither required nor has a default may be left out.
[Experiments](../experiments.md) explains the sections. `--override 'seed=1, second_round.epochs=4'` changes single
options.
"""
NAMED: dict[type[NamedSection], Mapping[str, type[NamedSection]]] = {
    LossSection: LOSSES,
    ModelSection: {name: ModelSection.kind(name) for name in MODELS},
}
"""Sections whose `name` chooses their kind."""
OTHERS = {
    "An ensemble": (Ensemble, "trains nothing: the weighted mean of several second rounds' similarities"),
    "A reranked table": (Reranking, "trains nothing: the lists of a table in the order of another model"),
    "A fused table": (Fusing, "trains nothing: the lists of several tables as one"),
}
Section = type[BaseModel]
KINDS = "`name` chooses the kind; each kind has its own options.\n"


def page() -> str:
    seen: dict[Section, str] = {}
    parts = [HEAD, "## An experiment\n", *_sections(Experiment, "", seen)]
    for title, (section, about) in OTHERS.items():
        parts += [f"## {title}\n", f"A file that {about}.\n", *_sections(section, "", seen)]
    parts += ["## A study\n", "A file in `configs/studies/`.\n", *_sections(Study, "", seen)]
    parts += ["## luigi.cfg\n", LUIGI, f"```ini\n{(Path(aoq.__path__[0]) / 'luigi.cfg').read_text()}```\n"]
    return "\n".join(parts)


LUIGI = """Where and how things run: the settings that aoq ships. A `luigi.cfg` in the current directory overrides
single options.
"""


def _sections(section: Section, place: str, seen: dict[Section, str]) -> Iterator[str]:
    """Yield the section's table, then those of its subsections; a section shown before is linked."""
    if place:
        yield f"{_heading(place)} [{place}]\n"
        yield KINDS if issubclass(section, NamedSection) else f"{_own_docstring(section)}\n"
    if section in seen:
        yield f"The options are those of {_link(seen[section])}.\n"
        return
    shown = next((base for base in section.__mro__ if base in seen), None)
    seen[section] = place
    if issubclass(section, NamedSection):
        yield from _kinds(next(kinds for base, kinds in NAMED.items() if issubclass(section, base)), place)
        return
    if shown is not None:
        yield f"The options are those of {_link(seen[shown])}, and:\n"
    inherited = tuple(shown.model_fields) if shown is not None else ()
    yield table(section, leave_out=inherited)
    for name, field in section.model_fields.items():
        for inner in sections_in(field.annotation) if name not in inherited else []:
            key = f"{name}.NAME" if "dict" in str(field.annotation) else name
            yield from _sections(inner, f"{place}.{key}" if place else key, seen)


def _kinds(kinds: Mapping[str, type[NamedSection]], place: str) -> Iterator[str]:
    """Yield a table per kind; kinds of one class share it."""
    for kind in dict.fromkeys(kinds.values()):
        named = [name for name, section in kinds.items() if section is kind]
        yield f"#{_heading(place)} {', '.join(named)}\n"
        yield f"{' or '.join(f'`name = {json.dumps(name)}`' for name in named)}. {_own_docstring(kind)}\n"
        yield table(kind, leave_out=("name",))


def _heading(place: str) -> str:
    return "###" if "." not in place else "####"


def _link(place: str) -> str:
    return f"[`[{place}]`](#{place.replace('.', '')})"


def table(section: Section, leave_out: tuple[str, ...] = ()) -> str:
    """Make a table with a row per plain option; subsections have their own headings."""
    about = docstrings(section)
    properties = section.model_json_schema()["properties"]
    lines = ["| option | |", "|---|---|"]
    for name, field in section.model_fields.items():
        if name not in leave_out and not sections_in(field.annotation):
            default = _default(field.default, field.is_required(), field.default_factory)
            kind = f"{kind_of(properties[name])}{default}"
            lines.append(f"| `{name}` | {kind}<br>{_cell(about.get(name, ''))} |")
    return "\n".join([*lines, ""]) if len(lines) > 2 else ""


def docstrings(section: Section) -> dict[str, str]:
    """Collect the description of each option, or its docstring in the class or its bases."""
    about = {name: field.description for name, field in section.model_fields.items() if field.description}
    texts: dict[str, str] = {}
    for owner in reversed(section.__mro__):
        is_derived = getattr(sys.modules[owner.__module__], owner.__name__, None) is not owner  # and has no source
        if not issubclass(owner, BaseModel) or owner is BaseModel or is_derived:
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        assert isinstance(body, ast.ClassDef)
        for field, after in zip(body.body, body.body[1:], strict=False):
            match field, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[name] = " ".join(text.split())
    return texts | {name: " ".join(text.split()) for name, text in about.items()}


def kind_of(schema: Mapping[str, Any]) -> str:
    """Describe a JSON schema's type and range in words.

    >>> kind_of({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    'number, above 0, at most 1'
    """
    if "anyOf" in schema:
        return " or ".join(kind_of(each) for each in schema["anyOf"] if each.get("type") != "null")
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{json.dumps(value)}`" for value in values)
    words = [TYPES.get(schema.get("type", ""), "value")]
    if schema.get("type") == "array":
        items = schema.get("items") or {}
        words = [f"array of {kind_of(items)}" if items else f"array of {len(schema['prefixItems'])} numbers"]
    words += [f"{word} {schema[key]:g}" for key, word in BOUNDS.items() if key in schema]
    return ", ".join(words)


TYPES = {"string": "text", "integer": "integer", "number": "number", "boolean": "`true`, `false`", "object": "table"}
BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def _default(value: Any, is_required: bool, factory: Any) -> str:
    if is_required:
        return "; **required**"
    if value is PydanticUndefined:
        value = factory()
    return "" if value is None else f"; default `{json.dumps(value)}`"


def _own_docstring(section: Section) -> str:
    return inspect.cleandoc(vars(section).get("__doc__") or "")


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
