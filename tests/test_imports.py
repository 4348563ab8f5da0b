"""Imports point one way, and what is loaded before a fork loads neither torch nor faiss."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.test_structure import ROOT, SOURCES, tree

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


def imports_of(module):
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_no_module_imports_one_below_it():
    for module in SOURCES:
        own = row_of(module)
        assert own is not None or module == "aoq.pipeline", f"{module} has no row in the map"
        for imported in imports_of(module):
            row = row_of(imported)
            assert row is None or own is None or row <= own, f"{module} imports {imported}, which is below it"


def test_models_import_torch_only():
    allowed = {"__future__", "abc", "collections", "dataclasses", "functools", "math", "re", "typing"}
    allowed |= {"annotated_types", "importlib", "jaxtyping", "torch"}
    for module in (module for module, path in SOURCES.items() if path.parent == ROOT / "models"):
        found = {name.split(".")[0] for name in imports_of(module) if not name.startswith("aoq.models")}
        assert found <= allowed, f"{module}: {found - allowed}"


@pytest.mark.parametrize("module", ["tasks", "aoq.tasks", "aoq.pipeline.cli"])
def test_scheduling_imports_neither_torch_nor_faiss(module):
    """Luigi forks after importing tasks; a parent that has computed with either would hang its children."""
    code = f"import sys, {module}; print([m for m in ('torch', 'faiss') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
