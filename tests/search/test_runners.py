"""Units are done in order, in process or on a cluster; a wrong choice is refused in one sentence."""

import sys

import numpy as np
import pyarrow as pa
import pytest

from aoq.pipeline.engine import Engine
from aoq.pipeline.on_ray import choose_runner, connected, required_resources, ship_problem
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.units import Folder


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"no usable Ray cluster at '127\.0\.0\.1:1' \(.*refused\); give HOST:PORT"),
        ("ray://head:10001", r"no usable Ray cluster at 'ray://head:10001' \(.*\); give HOST:PORT"),
        ("somewhere", r"no usable Ray cluster at 'somewhere' \(.*\); give HOST:PORT"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_named(address, message):
    pytest.importorskip("ray")
    with pytest.raises((OSError, ValueError), match=message), connected(address):
        pass


def test_without_ray_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'backend = ray needs ray .*pip install "aoq\[ray\]"'):
        choose_runner(Engine(backend="ray"), ship_problem)


class Nodes:
    """A Ray of two nodes, of which one is dead."""

    def nodes(self):
        there = {"NodeID": "a" * 40, "NodeManagerHostname": "a", "Resources": {"CPU": 4.0, "memory": 8e9, "GPU": 1.0}}
        return [there | {"Alive": True}, there | {"NodeID": "b" * 40, "Alive": False}]


@pytest.mark.parametrize(
    ("device", "gpus"), [("cpu", {}), *((name, {"GPU": 1}) for name in ("auto", "cuda", "cuda:1"))]
)
def test_a_process_takes_a_gpu_where_there_is_one(device, gpus):
    assert required_resources(Nodes(), device, 4) == {"CPU": 4, **gpus}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("cpu", 5), "0 of 1 processes of 5 CPUs, 0 GPUs and 0 MB"),
        (("cpu", 1, 9_000_000_000), "0 of 1 processes of 1 CPUs, 0 GPUs and 9000 MB"),
        (("auto", 1, 0, 2), "1 of 2 processes of 1 CPUs, 1 GPUs and 0 MB"),
    ],
)
def test_what_the_cluster_has_no_room_for_is_said(given, said):
    with pytest.raises(ValueError, match=rf"room for {said} each; its 1 nodes have 4 CPUs, 1 GPUs and 8000 MB\."):
        required_resources(Nodes(), *given)


def test_vectors_that_are_no_file_are_refused(tmp_path):
    np.save(tmp_path / "images.npy", np.eye(3, dtype=np.float32))
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    for images in (np.array(mapped), mapped[1:]):
        problem = Problem(images, mapped, np.full(3, -1, np.int32), 1, 1)
        with pytest.raises(ValueError, match=r"one whole memory-mapped \.npy file"):
            ship_problem(problem, Folder(tmp_path), fetched={})


def test_a_table_of_a_folder_is_read_only_as_it_was_written(tmp_path, caplog):
    written = Folder(tmp_path, "one search")
    for name in ("i2t-0", "i2t-1"):
        written.write(name, pa.table({"score": [1.0, 2.0]}))
    path = tmp_path / "i2t-0.unit"
    whole = path.read_bytes()
    damages = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    for content in (*damages, whole[:-1], whole[:9], b"", whole + b"0", (tmp_path / "i2t-1.unit").read_bytes()):
        path.write_bytes(content)
        assert not written.has("i2t-0")
        with pytest.raises(ValueError, match=r"i2t-0.unit was lost or damaged after it was written; run again"):
            written.read("i2t-0")
    path.write_bytes(whole)
    assert written.has("i2t-0")
    other = Folder(tmp_path, "another search")
    assert not other.has("i2t-0")
    assert "i2t-0.unit is damaged or belongs to another search; making it again" in caplog.text
