"""aoq without an extra, freshly installed: what works, and what the rest says it needs."""

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.install

TINY = Path(__file__).parent.parent / "tiny.toml"
NOISY = TINY.with_name("noisy.toml")


@pytest.fixture(scope="module")
def world(core, tmp_path_factory):
    """A folder where both rounds of the tiny experiment, which is its own `mine`, have been run."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "configs").mkdir()
    shutil.copy(TINY, folder / "configs" / "mine.toml")
    shutil.copy(NOISY, folder / "configs")
    run = core.run("luigi", "--module", "tasks", "Evaluation", "--experiment", "mine", cwd=folder)
    assert run.returncode == 0, run.stderr
    return folder


def test_it_starts_without_an_extra(core, tmp_path):
    assert core.run("python", "-c", "import aoq", cwd=tmp_path).returncode == 0
    assert "mine" in core.run("aoq", "--help", cwd=tmp_path).stdout
    shown = core.run("aoq", "--version", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert 'FAISS is not installed: pip install "aoq[cpu]"' in shown.stdout


def test_both_rounds_and_the_commands_on_them_need_no_extra(core, world):
    for arguments in (["results", "mine"], ["inspect", "mine", "--image", "7"], ["status", "mine"], ["gc"]):
        shown = core.run("aoq", *arguments, cwd=world)
        assert shown.returncode == 0, shown.stderr
    assert core.run("aoq", "data", "check", str(next(world.glob("artifacts/world/[!.]*"))), cwd=world).returncode == 0


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["aoq", "report", "mine"], "report"),
        (["aoq", "browse", "mine"], "browse"),
        (["luigi", "--module", "tasks", "Report", "--runs", "mine"], "report"),
        (["luigi", "--module", "tasks", "SecondRound", "--experiment", "noisy"], "ncr"),
        (["luigi", "--module", "tasks", "HardNegatives", "--engine-backend", "ray", "--experiment"], "ray"),
    ],
)
def test_a_command_that_needs_an_extra_names_it_in_one_sentence(core, world, command, extra):
    if command[-1] == "--experiment":  # another table than the one that is there
        command = [*command, "mine", "--override", "mining.h_captions=9"]
    failed = core.run(*command, cwd=world)
    assert failed.returncode != 0
    assert "Traceback" not in failed.stderr
    (said,) = [line for line in failed.stderr.splitlines() if "error: " in line]
    assert f'pip install "aoq[{extra}]"' in said
