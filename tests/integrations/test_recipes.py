"""The recipes of docs/recipes as they stand, in one process and in two: the same loss at the end."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.integrations

RECIPES = Path(__file__).parent.parent.parent / "docs" / "recipes"
BIN = Path(sys.executable).parent
LAUNCHES = {
    "accelerate": [BIN / "accelerate", "launch", "--cpu", "--num_processes"],
    "fabric": [BIN / "fabric", "run", "--accelerator", "cpu", "--strategy", "ddp", "--devices"],
}
LONGEST = 60


@pytest.mark.parametrize(("name", "library"), [("accelerate", "accelerate"), ("fabric", "lightning_fabric")])
def test_two_processes_end_where_one_does(name, library):
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    recipe = RECIPES / f"{name}_towers.py"
    assert len(recipe.read_text().splitlines()) <= LONGEST
    losses = []
    for processes in (1, 2):
        command = [str(one) for one in (*LAUNCHES[name], processes, recipe)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert ended.returncode == 0, ended.stderr
        losses.append(float(ended.stdout.splitlines()[-1]))
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
