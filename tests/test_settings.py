"""Settings, experiments and studies are looked for in the current directory, then among those that aoq brings.

And rows that threads share are each taken once.
"""

import errno
import importlib
import itertools
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from luigi.configuration import LuigiConfigParser

from aoq.pipeline import console, settings
from aoq.pipeline.config.load import load_experiment, names_in
from aoq.pipeline.config.study import STUDIES, load_study
from aoq.pipeline.console import is_hidden
from aoq.pipeline.engine import Engine, in_parallel
from aoq.pipeline.settings import configured_path, read_shipped_settings, runs_root
from tests.programs import Program


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current directory with an experiment of its own, one named as a shipped one, and a study."""
    (tmp_path / "configs" / "studies").mkdir(parents=True)
    for name in ("mine", "f8k_vsepp"):
        (tmp_path / "configs" / f"{name}.toml").write_text('[ensemble]\nmembers = ["demo", "f30k_vsrn"]\n')
    study = 'baseline = "online"\nseeds = [7]\n[models]\nsmall = "demo"\n[arms.online]\n'
    (tmp_path / "configs" / "studies" / "mine.toml").write_text(study)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_own_experiments_and_studies_stand_beside_shipped_ones_and_go_before_them(folder):
    assert load_experiment("mine").ensemble == load_experiment("f8k_vsepp").ensemble
    assert load_experiment("mine").ensemble.members == ("demo", "f30k_vsrn")
    assert load_experiment("f8k_vsrn").model.name == "vsrn"
    names = names_in()
    assert {"mine", "f8k_vsepp", "demo"} <= set(names)
    assert names == sorted(set(names))
    with pytest.raises(ValueError, match=r"unknown experiment 'mein'; did you mean 'mine'"):
        load_experiment("mein")
    assert load_study("mine").seeds == (7,)
    assert load_study("demo").seeds
    assert {"mine", "demo"} <= set(names_in(STUDIES))
    with pytest.raises(ValueError, match=r"unknown study 'mein'; did you mean 'mine'"):
        load_study("mein")


def test_roots_start_at_the_current_directory(folder, monkeypatch):
    monkeypatch.setattr(settings, "section_settings", lambda _: {"artifact_root": "made", "runs_root": "~/runs"})
    monkeypatch.setenv("HOME", "/home/somebody")
    assert configured_path("artifact_root") == folder / "made"
    assert configured_path("artifact_root", "other") == folder / "other"
    assert str(runs_root(folder / "made")) == "/home/somebody/runs"
    assert runs_root(folder / "other") == folder / "other" / "runs"


def test_shipped_settings_fill_what_no_other_file_has_set(monkeypatch):
    own = LuigiConfigParser()
    own.set("paths", "data_root", "elsewhere")
    monkeypatch.setattr(settings, "get_config", lambda: own)
    read_shipped_settings()
    assert own.get("paths", "data_root") == "elsewhere"
    assert own.get("paths", "artifact_root") == "artifacts"
    assert own.getboolean("core", "local_scheduler")
    module, _, name = own.get("worker", "task_process_context").rpartition(".")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[engine]\nthreads = 1\nthreads = 2\n", "option 'threads' in section 'engine' already exists"),
        (b"\xff\xfe", "can't decode byte 0xff"),
        (b"[paths]\ndata_root = %(nothing)s\n", "[paths] in luigi.cfg: Bad value substitution"),
    ],
)
def test_an_own_luigi_cfg_that_is_broken_is_one_sentence(tmp_path, text, message):
    (tmp_path / "luigi.cfg").write_bytes(text)
    ended = Program(["aoq", "status", "demo"], tmp_path).wait()
    assert ended.returncode == 1
    assert message in ended.stderr
    assert ended.stderr.startswith("error: ")
    assert "Traceback" not in ended.stderr


def test_an_own_luigi_cfg_that_cannot_be_read_is_named(folder, monkeypatch):
    (folder / "luigi.cfg").touch()

    def forbidden(path, mode):  # root may read anything
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "open", forbidden)
    with pytest.raises(PermissionError, match=r"luigi\.cfg cannot be read \(permission denied\)"):
        read_shipped_settings()
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    (folder / "luigi.cfg").unlink()
    (folder / "luigi.cfg").mkdir()
    with pytest.raises(ValueError, match=r"luigi.cfg is damaged or not a luigi.cfg \(it is a folder\)"):
        read_shipped_settings()


def test_threads_that_no_machine_has_are_refused():
    for name, number in itertools.product(("threads", "workers"), (100_000, -1, 10**20)):
        with pytest.raises(ValueError, match=rf"\[engine\] {name} is {number}; give 0 .* to "):
            Engine(**{name: number})
    with pytest.raises(ValueError, match=r"\[engine\] checkpoint_steps is 0; give at least 1"):
        Engine(checkpoint_steps=0)
    with pytest.raises(ValueError, match=r"backend is 'dask'; known are inprocess and ray"):
        Engine(backend="dask")


def test_log_lines_show_what_a_terminal_would_obey():
    for error in (None, ValueError("\u202efile"), KeyError("bug\x1b")):
        record = logging.LogRecord(
            "aoq", logging.ERROR, "", 0, "task \x1b[31m%s", ("\x00",), error and (type(error), error, None)
        )
        shown = console._OneLine().format(record)
        assert "\\u202e" in shown if isinstance(error, ValueError) else r"task \x1b[31m\x00" in shown
        assert not any(map(is_hidden, shown))


@pytest.mark.parametrize("number", [1, 3])
def test_what_any_thread_raises_is_raised(number):
    torch.set_num_threads(number)

    def fail(start, stop):
        if stop == 3:
            raise MemoryError("a part")

    with pytest.raises(MemoryError, match="a part"):
        in_parallel(fail, 3, parts=3)


@pytest.mark.parametrize(("count", "number"), [(0, 2), (1, 3), (100, 1), (100, 3)])
def test_every_row_is_taken_once(count, number):
    torch.set_num_threads(number)
    taken = np.zeros(count, int)

    def take(start, stop):
        in_parallel(lambda first, last: np.add.at(taken, slice(start + first, start + last), 1), stop - start)

    in_parallel(take, count)
    assert (taken == 1).all()
