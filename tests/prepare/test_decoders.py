"""Photographs decoded by other processes: the same pixels, errors at their place, nobody left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.prepare.pixels import decoded_elsewhere, open_pixels

SEEN = Preprocessing(16, 24, (16, 24), (0.5,) * 3, (0.5,) * 3, "bilinear")
WAYS = ("crop", "flip", "randaugment")


@pytest.fixture
def folder(prepared, photos):
    return prepared(photos)


def opened(folder):
    return open_pixels(folder, open_split(folder, "train"), SEEN)


@contextmanager
def started(folder, count):
    """The pool, all of whose processes run, and their ids."""
    with decoded_elsewhere(opened(folder), count) as pixels:
        pixels.read(np.arange(16))
        yield pixels, [process.pid for process in multiprocessing.active_children()]


def read_on(pixels, rows):
    for _ in range(1000):
        pixels.read(rows)


def runs(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def test_pixels_are_those_of_one_process_and_a_killed_one_is_one_sentence(folder, photos):
    alone, rows = opened(folder), np.array([7, 7, 3, 15, 0, 1])
    with started(folder, 2) as (pixels, pids):
        assert torch.equal(pixels.read(rows), alone.read(rows))
        for epoch in (0, 1):
            changed = alone.augmented(WAYS, 5, epoch).read(rows)
            assert torch.equal(pixels.augmented(WAYS, 5, epoch).read(rows), changed)
            assert torch.equal(pixels.augmented(WAYS, 5, epoch).read(rows[:1]), changed[:1])
        (photos.parent / "01.png").write_bytes((photos.parent / "02.png").read_bytes())
        with pytest.raises(ValueError, match=r"^\S+01.png: was changed since the folder was prepared; prepare"):
            pixels.read(rows)
        assert torch.equal(pixels.read(rows[:4]), alone.read(rows[:4]))  # the others go on
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(ChildProcessError, match=r"^a process that decodes photographs was killed, .* Run again: "):
            read_on(pixels, rows[:4])
    assert not multiprocessing.active_children()


def _begin(folder, told):
    with started(folder, 1) as (_, pids):
        told.send(pids)
        time.sleep(600)


def test_none_outlives_a_killed_training(folder):
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    training = spawning.Process(target=_begin, args=(folder, there))
    training.start()
    assert here.poll(60)
    pids = here.recv()
    assert len(pids) == 1
    assert all(map(runs, pids))
    training.kill()
    training.join()
    until = time.monotonic() + 30
    while any(map(runs, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(runs, pids))
