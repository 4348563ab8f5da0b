"""The layout in CONTRIBUTING.md: imports point one way, and what is loaded before a fork is light."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from aoq.models import MODELS

ROOT = Path(__file__).parent.parent
SOURCES = {
    ".".join(("aoq", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for folder in ("models", "pipeline", "tasks")
    for path in (ROOT / folder).rglob("*.py")
}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(SOURCES[module].read_text(encoding="utf-8"))


@cache
def imported_by(module: str) -> frozenset[str]:
    """What it imports anywhere in it, in functions too: modules, and names of modules as MODULE.NAME."""
    found = set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{name.name}" for name in node.names}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return frozenset(found)


def own_modules(module: str) -> set[str]:
    """Our modules that it imports."""
    found = {name if name in SOURCES else name.rpartition(".")[0] for name in imported_by(module)}
    return found & SOURCES.keys() - {module}


def test_no_circle_of_imports():
    """An error names a circle."""
    TopologicalSorter({module: own_modules(module) for module in SOURCES}).prepare()


def test_imports_go_by_the_package():
    """`import aoq` must work beside anybody's own `models`, `pipeline` and `tasks`."""
    for module in SOURCES:
        roots = {name.partition(".")[0] for name in imported_by(module)}
        assert not roots & {"models", "pipeline", "tasks"}, f"{module} imports {roots}"


def test_commands_say_everything_through_one_module():
    """`aoq.pipeline.cli.output` escapes what a terminal would obey; rich's tables are only filled elsewhere."""
    allowed = {"aoq.pipeline.cli.output": {"click.echo", "rich.console", "rich.filesize", "rich.text"}}
    allowed["aoq.pipeline.console"] = {"rich.console", "rich.progress"}
    for module in SOURCES:
        attributes = (node for node in ast.walk(tree(module)) if isinstance(node, ast.Attribute))
        found = imported_by(module) | {ast.unparse(node) for node in attributes}
        writes = {used[0] for name in found if (used := re.match(r"rich\.(?!table\b)\w+", name))}
        writes |= found & {"click.echo", "click.secho", "click.style", "click.echo_via_pager"}
        assert writes <= allowed.get(module, set()), f"{module} uses {writes}: use aoq.pipeline.cli.output"


def test_no_folder_lies_deep():
    for path in (ROOT / "pipeline").rglob("*.py"):
        depth = len(path.relative_to(ROOT / "pipeline").parts) - 1
        assert depth <= 2, f"{path} lies {depth} folders below pipeline/"


FIRST = ("artifact", "build", "files", "engine", "console", "extras", "reading", "columns")
ROWS = [
    [f"aoq.pipeline.{name}" for name in FIRST],
    ["aoq.models"],
    ["aoq.pipeline.losses"],
    ["aoq.pipeline.search"],
    ["aoq.pipeline.vector_files"],
    ["aoq.pipeline.vectors"],
    ["aoq.pipeline.on_ray"],
    ["aoq.pipeline.config"],
    ["aoq.pipeline.data", "aoq.pipeline.official"],
    ["aoq.pipeline.prepare"],
    ["aoq.pipeline.embedding"],
    ["aoq.pipeline.tables"],
    ["aoq.pipeline.batches"],
    ["aoq.pipeline.mining"],
    ["aoq.pipeline.evaluation"],
    ["aoq.pipeline.training"],
    ["aoq.pipeline.stages.chain", "aoq.pipeline.stages.splits"],
    ["aoq.pipeline.report"],
    ["aoq.pipeline.stages"],
    ["aoq.pipeline.browse"],
    ["aoq.pipeline.settings"],
    ["aoq.tasks", "aoq.pipeline.cli"],
]


def row_of(module):
    for number, row in enumerate(ROWS):
        if any(module == name or module.startswith(f"{name}.") for name in row):
            return number
    return None


def test_no_module_imports_one_below_it():
    for module in SOURCES:
        own = row_of(module)
        assert own is not None or module == "aoq.pipeline", f"{module} has no row in the map"
        for imported in own_modules(module):
            row = row_of(imported)
            assert row is None or own is None or row <= own, f"{module} imports {imported}, which is below it"


def test_models_import_torch_only():
    allowed = {"__future__", "abc", "collections", "dataclasses", "functools", "math", "re", "typing"}
    allowed |= {"annotated_types", "importlib", "jaxtyping", "torch"}
    for module in (module for module, path in SOURCES.items() if path.parent == ROOT / "models"):
        found = {name.split(".")[0] for name in imported_by(module) if not name.startswith("aoq.models")}
        assert found <= allowed, f"{module}: {found - allowed}"


@pytest.mark.parametrize(
    "start", ["import tasks", "from aoq.pipeline.cli import main; main.make_context('aoq', ['list'])"]
)
def test_scheduling_imports_neither_torch_nor_faiss_and_lets_threads_sleep(start):
    """Luigi forks after importing tasks; a parent that has computed with either would hang its children.

    OpenMP reads the variable when torch is imported, and threads that spin slow down all other work.
    """
    shows = "*map(os.environ.get, ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')), *{'torch', 'faiss'} & {*sys.modules}"
    code = f"{start}; import os, sys; print({shows})"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout == "passive 10000\n"


def loaded(code):
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def test_only_a_named_models_file_is_imported():
    modules = loaded("from aoq.models import MODELS; MODELS['vsepp']")
    assert {name for name in MODELS if MODELS.place(name)[0] in modules} == {"vsepp"}


def test_drawing_a_batch_loads_no_losses():
    assert "aoq.pipeline.losses" not in loaded("from aoq import BatchSampler")
