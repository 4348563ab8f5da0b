"""`aoq --help` is complete and fast, and loads no heavy library; `aoq --version` says what a report of a bug should."""

import json
import platform
import subprocess
import sys
from importlib.metadata import version

import click
import faiss
import pytest
import torch
from click.testing import CliRunner

from aoq.pipeline.cli import main
from aoq.pipeline.cli.commands import COMMANDS, MODULES
from aoq.pipeline.config.load import names_in
from aoq.pipeline.search.backends import BACKENDS

HEAVY = ("torch", "numba", "faiss", "llvmlite", "scipy", "matplotlib", "flask")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_command_stands_in_its_group_uncropped(width):
    shown = CliRunner().invoke(main, ["--help"], terminal_width=width - 2).stdout  # as click sees a terminal
    assert max(map(len, shown.splitlines())) <= width
    for group, listed in COMMANDS.items():
        section = shown.partition(f"\n{group}:\n")[2].partition("\n\n")[0].splitlines()
        assert [line.split(None, 1) for line in section] == [[name, line] for name, (_, line) in listed.items()]


@pytest.mark.parametrize("name", MODULES)
def test_a_line_of_the_list_is_the_commands_own_and_no_help_is_wide(name):
    command = main.get_command(click.Context(main), name)
    assert command.name == name
    assert command.help.splitlines()[0] in [listed[name][1] for listed in COMMANDS.values() if name in listed]
    assert not command.help.splitlines()[1:] or not command.help.splitlines()[1]
    shown = CliRunner().invoke(main, [name, "--help"], terminal_width=58)
    assert shown.exit_code == 0
    assert max(map(len, shown.stdout.splitlines())) <= 60


def test_help_and_usage_errors_load_nothing_heavy():
    commands = [[], ["--help"], ["statu"], *([name, "--help"] for name in MODULES), ["mine"], ["stats", "--nothing"]]
    code = f"""
import sys
from click.testing import CliRunner
from aoq.pipeline.cli import main
for command in {commands!r}:
    shown = CliRunner().invoke(main, command, prog_name="aoq")
    loaded = [name for name in {HEAVY!r} if name in sys.modules]
    assert (shown.exit_code in (0, 2), shown.output.count("Usage: "), loaded) == (True, 1, []), (command, shown, loaded)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_lists_name_all_there_is(monkeypatch):
    shown = json.loads(CliRunner().invoke(main, ["list", "--json"]).stdout)
    assert [row["experiment"] for row in shown["experiments"]] == names_in()
    assert {row["experiment"]: row["table"] for row in shown["experiments"]}["demo"] == "demo_vsepp"
    assert "demo" in [row["study"] for row in shown["studies"]]
    assert [row["Luigi's task"] for row in shown["stages"]][-3:-1] == ["SecondRound", "Evaluation"]
    searches = json.loads(CliRunner().invoke(main, ["list", "searches", "--json"]).stdout)["searches"]
    assert {row["search"] for row in searches} == {"auto", *BACKENDS}
    monkeypatch.setenv("COLUMNS", "80")
    lines = CliRunner().invoke(main, ["list"]).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "f30k_vse_infinity_bert f30k_precomp vse_infinity its own" in [" ".join(line.split()) for line in lines]


def test_one_wrong_file_hides_no_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs" / "studies").mkdir(parents=True)
    for file in ("wrong.toml", "studies/wrong.toml"):
        (tmp_path / "configs" / file).write_text("nothing = 1\n")
    shown = json.loads(CliRunner().invoke(main, ["list", "--json"]).stdout)
    for kind, name, said in (("experiments", "experiment", "table"), ("studies", "study", "title")):
        rows = {row[name]: row for row in shown[kind]}
        assert "unknown keys" in rows["wrong"][said]
        assert rows["demo"][said]


@pytest.mark.parametrize(
    ("words", "offered"),
    [("aoq run demo_v", "demo_vsepp"), ("aoq study dem", "demo"), ("aoq explain demo hard", "hard_negatives")],
)
def test_the_shell_completes_names(words, offered, monkeypatch):
    monkeypatch.setenv("_AOQ_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    shown = CliRunner().invoke(main, prog_name="aoq")
    assert f"plain,{offered}" in shown.stdout.splitlines()
    monkeypatch.setenv("COMP_WORDS", words.rpartition(" ")[0] + " ./my")
    assert CliRunner().invoke(main, prog_name="aoq").stdout.splitlines() == ["file,./my"]


def versions():
    shown = CliRunner().invoke(main, ["--version"])
    assert shown.exit_code == 0
    return shown.stdout.splitlines()


def test_versions_devices_and_what_is_not_installed_are_said(monkeypatch):
    aoq, python, of_torch, of_faiss = versions()
    assert aoq == f"aoq {version('aoq')}"
    assert python == f"Python {platform.python_version()}"
    assert of_torch.startswith(f"torch {torch.__version__} on CPU (")
    assert of_faiss.startswith(f"FAISS {faiss.__version__} on CPU")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"Card {number}")
    monkeypatch.setattr(faiss, "StandardGpuResources", object, raising=False)
    monkeypatch.setattr(faiss, "get_num_gpus", lambda: 2)
    *_, of_torch, of_faiss = versions()
    assert of_torch.endswith("Card 0, Card 1")
    assert of_faiss.endswith("on CPU, 2 GPUs")
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert versions()[3] == 'FAISS is not installed: pip install "aoq[cpu]", or "aoq[gpu]"'
