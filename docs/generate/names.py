"""The Python reference: every public name of `aoq`, by topic; mkdocstrings fills in the docstrings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import aoq

TOPICS = {
    "aoq.pipeline.mining": "Mining",
    "aoq.pipeline.search": "Mining",
    "aoq.pipeline.tables": "Tables",
    "aoq.pipeline.losses": "Losses",
    "aoq.pipeline.training": "Training",
    "aoq.pipeline.evaluation": "Evaluation",
    "aoq.models": "Models",
}
"""Topic of the public names of a package; the first that fits."""
INTEGRATIONS = Path(aoq.__file__).parent / "integrations"
CODE = re.compile(r"^>>> .*(?:\n\S.*)*|^    .*$|`[^`]*`", re.MULTILINE)
"""An example, from its prompt to the next empty line; an indented line; text in backquotes."""
HEAD = """# Python

The public API; [From Python](../python.md) shows how to use it.
"""


def page() -> str:
    return "\n".join([HEAD, *map(_section, dict.fromkeys([*TOPICS.values(), "More"])), *_integrations()])


def topic(home: str) -> str:
    return next((title for package, title in TOPICS.items() if home.startswith(package)), "More")


def _section(title: str) -> str:
    entries = [_entry(f"aoq.{name}", f"{home}.{name}") for name, home in aoq._homes().items() if topic(home) == title]
    return "\n".join([f"## {title}\n", *entries]) if entries else ""


def _integrations() -> list[str]:
    """Entries of other people's trainers, parsed instead of imported, since each needs a library of its own."""
    lines = []
    for package in sorted(INTEGRATIONS.glob("*/__init__.py")):
        public = f"aoq.integrations.{package.parent.name}"
        tree = ast.parse(package.read_text(encoding="utf-8"))
        homes = {
            name.asname: f"{node.module}.{name.name}"
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for name in node.names
            if name.asname
        }
        lines += [f"## {public}\n", *(_entry(f"{public}.{name}", home) for name, home in homes.items())]
    return lines


def _entry(public: str, home: str) -> str:
    short = public.rpartition(".")[2]
    return f"::: {home}\n    options:\n      heading: {public}\n      toc_label: {short}\n"


def as_markdown(docstring: str) -> str:
    """Fence examples, since Markdown takes `>>>` for quotations, and escape emphasis in formulas."""
    text, parts = 0, []
    for code in CODE.finditer(docstring):
        parts.append(_unmarked(docstring[text : code.start()]))
        parts.append(f"```pycon\n{code[0]}\n```" if code[0].startswith(">>>") else code[0])
        text = code.end()
    return "".join([*parts, _unmarked(docstring[text:])])


def _unmarked(text: str) -> str:
    return re.sub(r"[_*]", r"\\\g<0>", text)
