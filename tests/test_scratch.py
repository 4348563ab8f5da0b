"""Scratch beside an output: one process at a time, nothing stays, and what a kill left is taken over."""

import errno
import fcntl
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from aoq.pipeline.files import LOCK, reclaim, scratch_beside, scratch_in

FORK = multiprocessing.get_context("fork")


def killed_in(output, **options):
    """A process that is killed in the scratch of `output`, with a file written."""

    def work():
        with scratch_beside(output, **options) as folder:
            (folder / "half").write_text("made")
            os.kill(os.getpid(), signal.SIGKILL)

    process = FORK.Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def test_what_a_kill_left_is_taken_over_and_nothing_stays(tmp_path):
    output = tmp_path / "out"
    for _ in range(2):
        killed_in(output)
        assert scratch_in(tmp_path) == [tmp_path / ".out.work"]
    with scratch_beside(output) as folder:
        assert {path.name for path in folder.iterdir()} == {LOCK}
    assert not list(tmp_path.iterdir())


def test_what_is_worth_keeping_is_gone_on_with(tmp_path):
    def keep(folder):
        return (folder / "half").exists()

    killed_in(tmp_path / "out", keep=keep)
    with pytest.raises(FileNotFoundError), scratch_beside(tmp_path / "out", keep=keep) as folder:
        (folder / "none").read_text()
    with scratch_beside(tmp_path / "out", keep=keep) as folder:
        assert keep(folder)
    assert not list(tmp_path.iterdir())


def test_a_file_system_that_locks_nothing_is_named(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(OSError, match=rf"^the file system of {tmp_path}/\.out\.work does not support locks; mount it"):
        scratch_beside(tmp_path / "out").__enter__()


def test_of_two_at_once_one_is_told(tmp_path):
    with scratch_beside(tmp_path / "out") as folder:
        with pytest.raises(ValueError, match=r"another process is making .*out; wait for it"):
            scratch_beside(tmp_path / "out").__enter__()
        assert not reclaim(folder)
        assert (folder / LOCK).exists()
    killed_in(tmp_path / "out")
    assert reclaim(tmp_path / ".out.work")
    assert not list(tmp_path.iterdir())


def test_those_who_wait_have_it_one_after_the_other(tmp_path):
    """More of them than once: each takes the folder away that the next was waiting for."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count():
        for _ in range(25):
            with scratch_beside(counter, wait=True) as folder:
                (folder / "next").write_text(str(int(counter.read_text()) + 1))
                os.replace(folder / "next", counter)

    processes = [FORK.Process(target=count) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert counter.read_text() == "100"
    assert list(tmp_path.iterdir()) == [counter]


@pytest.mark.parametrize("what", ["link", "file"])
def test_what_is_no_scratch_folder_is_left_alone(tmp_path, what):
    precious, way = tmp_path / "precious", tmp_path / ".out.work"
    precious.mkdir()
    (precious / "file").write_text("kept")
    way.symlink_to(precious) if what == "link" else way.write_text("kept")
    with pytest.raises(ValueError, match=r"\.out\.work exists, but is not your own"):
        scratch_beside(tmp_path / "out").__enter__()
    assert (precious / "file").read_text() == "kept"


def test_a_place_that_takes_no_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"none does not exist; make it: mkdir -p '.*/none'\."):
        scratch_beside(tmp_path / "none" / "out").__enter__()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file is not a folder\."):
        scratch_beside(tmp_path / "file" / "out").__enter__()
    with pytest.raises(PermissionError, match="/proc is not writable"), scratch_beside(Path("/proc/made")):
        pass
