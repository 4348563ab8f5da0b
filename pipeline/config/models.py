"""The [model] section: its options are the keywords of the model's constructor.

They are read from its source, since importing a model loads torch, which planning must not.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field, SerializeAsAny, create_model

from aoq.models import MODELS
from aoq.pipeline.config.section import NamedSection, check_registered

NO_OPTIONS = ("feature_size", "vocabulary_size", "regions", "word_dropout")
"""Constructor arguments that come from the data, or from a subclass."""
ARGS_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)
"""An entry in `Args:` of a docstring."""


class ModelSection(NamedSection):
    """Options of a model of `aoq.models.MODELS`."""

    makes_embeddings: ClassVar[bool] = True
    """True if a search index can serve the model; otherwise it cannot mine a table."""
    attends: ClassVar[bool] = False
    """True if words and regions attend to each other, as constraints and attention metrics need."""

    @property
    def dimensions(self) -> int:
        if (size := getattr(self, "embedding_size", None)) is None:
            raise ValueError(f"[model] {self.name} has no option `embedding_size`, the dimension of its embeddings.")
        return int(size)

    @property
    def towers(self) -> dict[str, str]:
        """The pretrained towers that are set."""
        names = {name: getattr(self, name, None) for name in ("image_tower", "text_tower")}
        return {name: tower for name, tower in names.items() if tower is not None}

    @classmethod
    def kind(cls, name: str) -> type[ModelSection]:
        check_registered("model", name, MODELS)
        return _derive_model_section(name, *MODELS.place(name))


@cache
def _derive_model_section(name: str, module: str, model: str) -> type[ModelSection]:
    """Derive a section from a class's keywords and, through `**options`, its bases'; any base may describe them."""
    options, about, attends, bases = dict[str, Any](), dict[str, str](), list[bool](), list[str]()
    takes_more = True
    while node := _module_names(module).classes.get(model):
        bases.append(model)
        _, _, entries = (ast.get_docstring(node) or "").partition("\nArgs:\n")
        about = dict(ARGS_ENTRY.findall(entries)) | about
        for part in node.body:
            if isinstance(part, ast.Assign | ast.AnnAssign) and re.match(r"attends\b", ast.unparse(part)):
                attends.append(ast.unparse(part).endswith("True"))
            if takes_more and isinstance(part, ast.FunctionDef) and part.name == "__init__":
                options = _module_names(module).keywords(part.args) | options
                takes_more = part.args.kwarg is not None
        module, model = _module_names(module).home(ast.unparse(node.bases[0]) if node.bases else "")
    own: dict[str, Any] = {
        option: (kind, Field(default, description=" ".join(about.get(option, "").split())))
        for option, (kind, default) in options.items()
        if option not in NO_OPTIONS
    }
    section = create_model(f"ModelSection_{name}", __base__=ModelSection, **own)
    section.makes_embeddings, section.attends = "EmbeddingModel" in bases, [*attends, False][0]
    return section


Model = SerializeAsAny[ModelSection]


class _ModuleNames(dict[str, Any]):
    """Values of a module's names, in which `eval` looks up names."""

    def __init__(self, module: str) -> None:
        self.module, spec = module, find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        self.body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
        self.classes = {part.name: part for part in self.body if isinstance(part, ast.ClassDef)}

    def __missing__(self, name: str) -> Any:
        for part in self.body:
            if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == name:
                return self.value(part.value)
        module, name = self.home(name)
        if module == self.module:
            raise KeyError(name)  # a built-in name
        return _module_names(module)[name] if module.startswith("aoq.") else getattr(import_module(module), name)

    def home(self, name: str) -> tuple[str, str]:
        """Return the module that defines a name, and the name there."""
        imports = [part for part in self.body if isinstance(part, ast.ImportFrom)]
        homes = {alias.asname or alias.name: (str(part.module), alias.name) for part in imports for alias in part.names}
        return homes.get(name, (self.module, name))

    def value(self, expression: ast.expr) -> Any:
        return eval(ast.unparse(expression), {}, self)

    def keywords(self, arguments: ast.arguments) -> dict[str, tuple[Any, Any]]:
        """Return type and default (... for none) of each keyword-only parameter."""
        return {
            parameter.arg: (
                Any if parameter.annotation is None else self.value(parameter.annotation),
                ... if default is None else self.value(default),
            )
            for parameter, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        }


_module_names = cache(_ModuleNames)
