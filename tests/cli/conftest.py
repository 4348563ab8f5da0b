"""The tiny world mined once, and the `aoq` command in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main

ROOT = Path(__file__).parent.parent.parent
TINY = Path(__file__).parent.parent / "tiny.toml"


@pytest.fixture(scope="session")
def mined(tmp_path_factory):
    """An artifact root with the tiny experiment's table."""
    root = tmp_path_factory.mktemp("mined")
    command = [Path(sys.executable).parent / "luigi", "--module", "tasks", "HardNegatives", "--experiment", str(TINY)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = ["--artifact-root", str(root), "--engine-threads", "1"]
    subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=True, timeout=300)
    return root


@pytest.fixture
def aoq(mined):
    def run(*arguments, root=mined):
        given = [str(argument) for argument in arguments]
        if root is not None:
            given += ["--artifact-root", str(root)]
        return CliRunner().invoke(main, given)

    return run
