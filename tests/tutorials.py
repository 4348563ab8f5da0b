"""Read the commands and code of docs/tutorials, and run them."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from tests.prepare.conftest import picture
from tests.programs import Program

PAGES = Path(__file__).parent.parent / "docs" / "tutorials"
FORKING = ("prepare", "embed", "run", "study", "evaluate")


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    """Return the blocks fenced as `kind`, with continued lines joined."""
    bodies = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"\\\n *", "", block) for block in bodies]


def run(shell: str, folder: Path) -> str:
    """Run every command except installations, and return what they print.

    Those that fork have a process of their own: forking hangs after torch has computed.
    """
    printed = []
    for line in shell.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "pip":
            continue
        if program == "aoq" and arguments[0] not in FORKING:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                done = CliRunner().invoke(main, arguments)
            assert done.exit_code == 0, f"{line}\n{done.output}"
            printed.append(done.stdout)
            continue
        if program == "aoq":
            ended = Program([program, *arguments], folder).wait(600)
        else:
            ended = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, timeout=600)
        assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
        printed.append(ended.stdout)
    return "\n".join(printed)


def save_data_set(folder: Path, count: int) -> None:
    """Write `count` photographs with two captions each, as `load_dataset(…).save_to_disk` does."""
    datasets = pytest.importorskip("datasets")
    images = [picture(n, 40, 30) for n in range(count)]
    captions = [[f"a photograph {n % 7}", f"seen from afar {n}"] for n in range(count)]
    columns = datasets.Features({"image": datasets.Image(), "caption": datasets.Sequence(datasets.Value("string"))})
    whole = datasets.Dataset.from_dict({"image": images, "caption": captions}, features=columns)
    datasets.DatasetDict({"train": whole}).save_to_disk(folder)
