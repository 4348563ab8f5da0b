"""`aoq browse` as it is typed."""

from __future__ import annotations

import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from tests.programs import browsing

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def places(world, tmp_path):
    return ["--data-root", world, "--artifact-root", world / "artifacts", "--matches", tmp_path / "matches.csv"]


def refused(*arguments):
    shown = CliRunner().invoke(main, ["browse", *map(str, arguments)])
    assert shown.exit_code == 1, shown.output
    assert shown.stderr.startswith("error: ")
    return shown.stderr


def test_without_flask_it_says_what_to_install(world, places, monkeypatch):
    monkeypatch.setitem(sys.modules, "flask", None)
    assert "aoq browse needs flask" in (said := refused(world / "one.toml", *places))
    assert '`pip install "aoq[browse]"`' in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_stopped(world, places, tmp_path, number):
    with browsing(["aoq", "browse", world / "one.toml", *places], ROOT, number) as printed:
        assert f"{tmp_path / 'matches.csv'} (0 so far)" in printed[0]
        with urllib.request.urlopen(f"{printed[1]}image/3", timeout=60) as answer:
            assert answer.status == 200
    assert not (tmp_path / "matches.csv").exists()


def test_a_busy_port_is_said(world, places):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        shown = refused(world / "one.toml", "--port", port, *places)
    assert f"port {port} is in use by another program; choose another with --port" in shown


def test_what_has_nothing_to_show_names_the_command(world, places):
    name = world / "one.toml"
    assert f"run: aoq run {name}@seed=2 --round hard_negatives" in refused(f"{name}@seed=2", *places)
    (world / "both.toml").write_text(f'[ensemble]\nmembers = ["{name}", "{name}@seed=1"]\n')
    assert f"run: aoq evaluate {world / 'both.toml'}" in refused(world / "both.toml", *places)


def test_tables_of_other_data_are_refused(world, places):
    name = world / "one.toml"
    message = refused(name, f"{name}@dataset.train_images=60", *places)
    assert "are of different training data" in message
    assert "give both the same" in message
