"""The tutorials of docs/tutorials: what their pages have the reader type, and what types it."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from tests.prepare.conftest import picture

PAGES = Path(__file__).parent.parent / "docs" / "tutorials"
FORKING = ("prepare", "embed", "run", "study", "evaluate")
"""Commands that fork, and hang where torch has computed before: each needs a process of its own."""


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def blocks(text: str, kind: str) -> list[str]:
    """The blocks fenced as `kind`; lines continued by a backslash are joined."""
    found = re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [re.sub(r"\\\n *", "", block) for block in found]


def run(shell: str, folder: Path) -> str:
    """Run every command but installations; return what they print. Those that fork are processes of their own."""
    said = []
    for line in shell.splitlines():
        program, *arguments = shlex.split(line, comments=True)
        if program == "pip":
            continue
        if program == "aoq" and arguments[0] not in FORKING:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                done = CliRunner().invoke(main, arguments)
            assert done.exit_code == 0, f"{line}\n{done.output}"
            said.append(done.stdout)
            continue
        command = Path(sys.executable).parent / program if program == "aoq" else program
        ended = subprocess.run([command, *arguments], cwd=folder, capture_output=True, text=True, timeout=600)
        assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
        said.append(ended.stdout)
    return "\n".join(said)


def save_data_set(folder: Path, count: int) -> None:
    """`count` photographs with two captions each, as `load_dataset(…).save_to_disk` leaves them."""
    datasets = pytest.importorskip("datasets")
    images = [picture(n, 40, 30) for n in range(count)]
    captions = [[f"a photograph {n % 7}", f"seen from afar {n}"] for n in range(count)]
    columns = datasets.Features({"image": datasets.Image(), "caption": datasets.Sequence(datasets.Value("string"))})
    whole = datasets.Dataset.from_dict({"image": images, "caption": captions}, features=columns)
    datasets.DatasetDict({"train": whole}).save_to_disk(folder)
