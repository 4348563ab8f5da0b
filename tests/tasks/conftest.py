"""Luigi as users start it: a process of its own, here on the tiny world."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TINY = Path(__file__).parent.parent / "tiny.toml"
LUIGI = [str(Path(sys.executable).parent / "luigi"), "--module", "tasks"]


@pytest.fixture
def command(tmp_path):
    """(task, more arguments) -> the command line that makes the task below tmp_path."""

    def build(task, *arguments, experiment=TINY, root=tmp_path / "artifacts"):
        given = ["--experiment", str(experiment), "--artifact-root", str(root), "--engine-threads", "1"]
        return [*LUIGI, task, *given, *arguments]

    return build


@pytest.fixture
def luigi(command):
    def run(*arguments, cwd=ROOT, **options):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            command(*arguments, **options), cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
        )

    return run
