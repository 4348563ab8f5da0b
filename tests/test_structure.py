"""The house as CONTRIBUTING.md draws it: no circle of imports, no deep folders, one way to import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = {
    ".".join(("aoq", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for folder in ("models", "pipeline", "tasks")
    for path in (ROOT / folder).rglob("*.py")
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


def imported_by(module: str) -> set[str]:
    """Modules of ours that it imports anywhere in it, in functions too."""
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{name.name}" for name in node.names} & SOURCES.keys()
            found |= names or {node.module}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found & SOURCES.keys() - {module}


def test_no_circle_of_imports():
    """Modules that import nothing of what is left are taken away, until nothing is left."""
    waiting = {module: imported_by(module) for module in SOURCES}
    while free := [module for module, needs in waiting.items() if not needs & waiting.keys()]:
        for module in free:
            del waiting[module]
    assert not waiting, f"these import each other in circles: {sorted(waiting)}"


def test_imports_go_by_the_package():
    """`import aoq` must work beside anybody's own `models`, `pipeline` and `tasks`."""
    for module in SOURCES:
        for node in ast.walk(tree(module)):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [name.name for name in node.names] if isinstance(node, ast.Import) else []
            roots = {name.partition(".")[0] for name in names}
            assert not roots & {"models", "pipeline", "tasks"}, f"{module} imports {names}"


def test_commands_say_everything_through_one_module():
    """`aoq.pipeline.cli.output` escapes what a terminal would obey; rich's tables are only filled elsewhere."""
    allowed = {"aoq.pipeline.cli.output": {"click.echo", "rich.console", "rich.filesize", "rich.text"}}
    allowed["aoq.pipeline.console"] = {"rich.console", "rich.progress"}
    for module in SOURCES:
        found = set()
        for node in ast.walk(tree(module)):
            if isinstance(node, ast.ImportFrom):
                found |= (
                    {node.module or ""} if node.module != "click" else {f"click.{name.name}" for name in node.names}
                )
            elif isinstance(node, ast.Import):
                found |= {name.name for name in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "click":
                found.add(f"click.{node.attr}")
        writes = {name for name in found if name.split(".")[0] == "rich" and name != "rich.table"}
        writes |= found & {"click.echo", "click.secho", "click.style", "click.echo_via_pager"}
        assert writes <= allowed.get(module, set()), f"{module} uses {writes}: use aoq.pipeline.cli.output"


def test_no_folder_lies_deep():
    for path in (ROOT / "pipeline").rglob("*.py"):
        depth = len(path.relative_to(ROOT / "pipeline").parts) - 1
        assert depth <= 2, f"{path} lies {depth} folders below pipeline/"
