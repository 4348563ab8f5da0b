"""Whatever commands are given to say, the terminal obeys none of it; a folder that may not be written is named."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from aoq.pipeline.cli.output import echo, echo_json, say, show_rows, styled
from aoq.pipeline.console import is_hidden
from tests.cli.conftest import TINY, only
from tests.programs import Program
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


def test_captions_and_ids_are_shown(aoq, root):
    world = only(root, "world")
    captions = (world / "train_caps.txt").read_text().splitlines()
    ids = (world / "train_ids.txt").read_text().splitlines()
    (world / "train_caps.txt").write_text("".join(f"{text} {HOSTILE}\n" for text in captions))
    (world / "train_ids.txt").write_text("".join(f"{name}\x1b[2J\n" for name in ids))
    republish(world)
    for given in (["--image", "3"], ["--caption", "3"], ["--image", "3", "--json"]):
        shown = aoq("inspect", TINY, *given, root=root)
        assert not any(map(is_hidden, shown.output))
        assert "\\u202e" in shown.stdout


def test_a_terminal_of_few_characters_gets_escapes(mined):
    command = ["inspect", str(TINY), "--caption", "3", "--artifact-root", str(mined)]
    shown = CliRunner(charset="ascii").invoke(main, command)
    assert shown.exit_code == 0, shown.stderr
    assert rb"caption 3 \u201c" in shown.stdout_bytes


def test_the_folder_is_named(mined, folder, golden_file, tmp_path):
    rng, locked = np.random.default_rng(0), tmp_path / "locked"
    locked.mkdir(0o555)
    for name, rows in (("images", 40), ("captions", 120)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(rows, 8)).astype(np.float32))
    for name, rows in (("i2t_a", 40), ("t2i_a", 120)):
        np.save(tmp_path / f"{name}.npy", np.zeros((rows, 3), dtype=np.int64))
    vectors, out = (tmp_path / "images.npy", tmp_path / "captions.npy"), locked / "out"
    commands = [
        ("mine", *vectors, out, "--per-image", 3, "--h-captions", 5, "--h-images", 5),
        ("screen", folder, out, "--mutual-rank", 3),
        ("to-judge", folder, locked / "out.csv"),
        ("publish", folder, out),
        ("import-table", tmp_path / "i2t_a.npy", out, "--per-image", 3),
        ("import-checkpoint", golden_file("ckpt_scan_bigru.pth.tar"), out),
        ("export", folder, out, "--format", "trec"),
        ("report", TINY, "--output", out, "--artifact-root", mined),
    ]
    variables = {"MPLCONFIGDIR": str(tmp_path)}  # where matplotlib has not looked for fonts yet
    for command in commands:
        ended = Program(("aoq", *command), tmp_path, variables, privileged=False).wait()
        said = f"error: {locked} is not writable (permission denied).\n"
        assert (ended.returncode, ended.stderr) == (1, said), command
    assert not list(locked.iterdir())
