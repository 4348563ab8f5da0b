"""Whatever commands are given to say, the terminal shows it and obeys none of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from aoq.pipeline.cli.output import echo, echo_json, say, show_rows, styled
from aoq.pipeline.console import is_hidden
from tests.cli.conftest import TINY, only
from tests.republish import republish

HOSTILE = "[/red]\x1b[31m \u202edog\x00\x9b :smile:"
SHOWN = r"[/red]\x1b[31m \u202edog\x00\x9b :smile:"


def test_lines_titles_headers_and_cells_are_text(capsys):
    show_rows((HOSTILE,), [(HOSTILE,), (styled((HOSTILE, "bold")),)], title=HOSTILE)
    say(HOSTILE)
    echo(HOSTILE)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [SHOWN] * 6


def test_json_is_ascii_and_reads_back(capsys):
    echo_json({"text": HOSTILE + "\x7f\udcff"})
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert not any(map(is_hidden, shown))
    assert json.loads(shown) == {"text": HOSTILE + "\x7f\udcff"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("status", "a\x1b[31mb"),
        ("stat\x1b[31m",),
        ("--optio\x1b[31mn",),
        ("diff", "a", "b", "--depth", "\x1b[31m"),
        ("results", "--study", "\u202e"),
        ("data", "check", "missing\x1b[2J"),
        ("data", "chec\x1bk"),
    ],
)
def test_wrong_arguments_are_shown(arguments):
    shown = CliRunner().invoke(main, arguments)
    assert shown.exit_code in (1, 2)
    assert "\\x1b" in shown.stderr or "\\u202e" in shown.stderr or "\\x1b" in shown.stdout
    assert not any(map(is_hidden, shown.output))


def test_captions_and_ids_are_shown(aoq, mined, tmp_path):
    root = tmp_path / "mined"
    shutil.copytree(mined, root, symlinks=True)
    world = only(root, "world")
    captions = (world / "train_caps.txt").read_text().splitlines()
    ids = (world / "train_ids.txt").read_text().splitlines()
    (world / "train_caps.txt").write_text("".join(f"{text} {HOSTILE}\n" for text in captions))
    (world / "train_ids.txt").write_text("".join(f"{name}\x1b[2J\n" for name in ids))
    republish(world)
    for given in (["--image", "3"], ["--caption", "3"], ["--image", "3", "--json"]):
        shown = aoq("inspect", TINY, *given, root=root)
        assert shown.exit_code == 0, shown.output
        assert not any(map(is_hidden, shown.output))
        assert "\\u202e" in shown.stdout


def test_a_terminal_of_few_characters_gets_escapes(mined):
    command = [Path(sys.executable).parent / "aoq", "inspect", TINY, "--caption", "3", "--artifact-root", mined]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert rb"caption 3 \u201c" in ended.stdout
