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


def test_a_copy_has_the_code_of_the_original(copy):
    assert code_sha256(copy) == code_sha256(HERE)
    assert code_versions()["aoq's code"] == code_sha256(HERE)[:12]


@pytest.mark.parametrize("file", ["pipeline/search/scan.py", "models/vsepp.py"])
def test_a_changed_file_is_noticed(copy, file):
    with (copy / file).open("a") as changed:
        changed.write("\n")
    assert code_sha256(copy) != code_sha256(HERE)


def test_a_renamed_file_is_noticed(copy):
    (copy / "pipeline/search/limits.py").rename(copy / "pipeline/search/limit.py")
    assert code_sha256(copy) != code_sha256(HERE)
