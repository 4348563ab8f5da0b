"""Luigi as users start it, here on the tiny world."""

import shutil
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.programs import Program

ROOT = Path(__file__).parent.parent.parent
TINY = Path(__file__).parent.parent / "tiny.toml"
LUIGI = [str(Path(sys.executable).parent / "luigi"), "--module", "tasks"]


def command_line(task, *arguments, root, experiment=TINY):
    given = ["--experiment", str(experiment), "--artifact-root", str(root), "--engine-threads", "1"]
    return [*LUIGI, task, *given, *arguments]


@pytest.fixture
def command(tmp_path):
    """(task, more arguments) -> the command line that makes the task below tmp_path."""
    return partial(command_line, root=tmp_path / "made")


@pytest.fixture
def luigi(command):
    """(task, more arguments) -> what the task printed, and its code."""
    return lambda *arguments, cwd=ROOT, **options: Program(command(*arguments, **options), cwd).wait()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The artefacts of an uninterrupted run from another directory."""
    folder = tmp_path_factory.mktemp("whole")
    made = Program(command_line("SecondRound", root=folder / "made"), folder).wait()
    assert made.returncode == 0, made.stderr
    return folder / "made"


@pytest.fixture
def root(whole, tmp_path):
    """A copy of these artefacts, where `luigi` works."""
    return shutil.copytree(whole, tmp_path / "made", symlinks=True)
