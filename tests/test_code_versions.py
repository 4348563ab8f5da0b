"""Every node must have the same code: a change in any file of aoq is noticed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import aoq
from aoq.pipeline.build import code_sha256, code_versions

HERE = Path(aoq.__file__).parent


@pytest.fixture
def copy(tmp_path):
    for folder in ("models", "pipeline"):
        shutil.copytree(HERE / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_changed_and_renamed_files_are_noticed(copy):
    assert code_versions()["aoq's code"] == code_sha256(HERE)[:12] == code_sha256(copy)[:12]
    renamed, module = copy / "pipeline/search/limit.py", copy / "pipeline/search/limits.py"
    module.rename(renamed)
    assert code_sha256(copy) != code_sha256(HERE)
    renamed.rename(module)
    with module.open("a") as changed:
        changed.write("\n")
    assert code_sha256(copy) != code_sha256(HERE)
