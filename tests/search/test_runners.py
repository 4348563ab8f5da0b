"""Who does the units: a wrong choice of engine or cluster is said in one sentence."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from aoq.pipeline.engine import Engine
from aoq.pipeline.search.cluster import units as cluster_units
from aoq.pipeline.search.cluster.connection import connected
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.runners import choose_runner
from aoq.pipeline.search.store import Folder


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"nothing answers at 127\.0\.0\.1:1 \(.*refused\); is the cluster up"),
        ("ray://head:10001", r"'ray://head:10001' is no address of a Ray cluster; give HOST:PORT"),
        ("somewhere", r"'somewhere' is no address"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_named(address, message):
    pytest.importorskip("ray")
    with pytest.raises((OSError, ValueError), match=message), connected(address):
        pass


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'backend = ray needs ray .*pip install "aoq\[ray\]"'):
        choose_runner(Engine(backend="ray"))


def test_vectors_that_are_no_file_are_refused(tmp_path):
    np.save(tmp_path / "images.npy", np.eye(3, dtype=np.float32))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    for images in (np.array(mapped), mapped[1:]):
        problem = Problem(images, mapped, np.full(3, -1, np.int32), 1, 1)
        with pytest.raises(ValueError, match=r"one whole memory-mapped \.npy file"):
            cluster_units.write_job(problem, Folder(tmp_path), {})


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match=r"backend is 'dask'; known are inprocess and ray"):
        Engine(backend="dask")
