"""A training by two processes that Ray places on two nodes: as two of one machine train, or one sentence why not.

Run by `make test-cluster`.
"""

import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import pytest
import torch

from aoq.pipeline import on_ray
from aoq.pipeline.build import UNITS
from aoq.pipeline.engine import Engine
from aoq.pipeline.stages import processes as starting
from aoq.pipeline.stages import train as rounds
from aoq.pipeline.stages.processes import run_ranks
from aoq.pipeline.training.checkpoint import CHECKPOINTS
from tests.stages.test_ranks import failing, train
from tests.two_nodes import two_nodes, wait_for

pytestmark = pytest.mark.cluster

LOCAL = Engine("cpu", threads=1, processes=2)
SECOND_ROUND = 'epochs = 6, batch_size = 16, learning_rate = 1e-3, loss.name = "infonce"'


@pytest.fixture(scope="module")
def cluster():
    with two_nodes(__name__, 1_000_000_000) as started:
        yield started


@pytest.fixture
def ganged(cluster):
    return replace(LOCAL, backend="ray", ray_address=cluster.address)


@pytest.fixture
def chain(make):
    return make("student", "mining", second_round=SECOND_ROUND)


@pytest.fixture
def local(chain):
    """The manifest that two processes of this machine leave; the training is yet to be done."""
    manifest, made = train(chain, LOCAL), chain["second_round"].path
    made.rename(made.with_name("by two of this machine"))
    return manifest


def test_the_weights_are_those_of_two_processes_of_one_machine(cluster, ganged, chain, local, caplog):
    with caplog.at_level("INFO"):
        said = train(chain, ganged)
    for same in ("final_weights_sha256", "dev_rsum_by_epoch", "learnt_by_epoch", "inputs", "processes"):
        assert said[same] == local[same]
    assert said["files"]["model.safetensors"] == local["files"]["model.safetensors"]
    assert len({node.split("(")[1] for node in said["nodes"]}) == 2
    assert sum(f"epoch {epoch}: dev rsum" in caplog.text for epoch in range(1, 7)) == 6


def once_kept(act, checkpoint, chain, stage, directory, processes, engine):
    """Train; the second process acts once there is a checkpoint."""
    from aoq.pipeline.stages.train import train_rank  # a worker's own: here it is this function

    class Acting(type(processes)):
        def add_up(self, numbers):
            if self.rank == 1 and checkpoint.exists():
                act()
            return super().add_up(numbers)

    return train_rank(chain, stage, directory, Acting(**vars(processes)), engine)


def kill_itself():
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_ever():
    time.sleep(3600)


def test_the_loss_of_a_process_ends_all_and_the_next_run_goes_on(ganged, chain, local, monkeypatch, caplog):
    checkpoint = chain["second_round"].work / UNITS / CHECKPOINTS[0]
    monkeypatch.setattr(rounds, "train_rank", partial(once_kept, kill_itself, checkpoint))
    began = time.monotonic()
    said = r"^process 1 of this training, on \S+ \(\w{8}\), was killed, or lost with its node\. Run again: the training"
    with pytest.raises(ChildProcessError, match=said):
        train(chain, ganged)
    assert time.monotonic() - began < 120
    monkeypatch.undo()
    with caplog.at_level("INFO"):
        assert train(chain, ganged)["final_weights_sha256"] == local["final_weights_sha256"]
    assert "resuming at epoch" in caplog.text


def test_the_loss_of_a_node_ends_all_and_one_process_can_go_on(cluster, ganged, chain, monkeypatch):
    checkpoint = chain["second_round"].work / UNITS / CHECKPOINTS[0]

    def lose_it():
        wait_for(checkpoint.exists)
        cluster.remove_node(cluster.second, allow_graceful=False)

    monkeypatch.setattr(rounds, "train_rank", partial(once_kept, wait_for_ever, checkpoint))
    losing = threading.Thread(target=lose_it, daemon=True)
    losing.start()
    try:
        with pytest.raises(ChildProcessError, match=r"^process \d of .*, on \S+ \(\w{8}\), was killed, or lost with"):
            train(chain, ganged)
    finally:
        losing.join()
        cluster.second = cluster.add_node(num_cpus=1, memory=1_000_000_000)
    monkeypatch.undo()
    said = train(chain, replace(LOCAL, processes=1))
    assert (said["processes"], len(said["dev_rsum_by_epoch"])) == (1, 6)


def add_up(processes, engine):
    return float(processes.add_up(torch.ones(1)))


def unlike(processes, engine):
    processes.check_same({"content of train_ims.npy": str(processes.rank)})


def busy():
    time.sleep(3600)


def test_too_little_room_is_refused(ganged, tmp_path, monkeypatch):
    import ray

    room = "room for 2 of 3 processes of 1 CPUs, 0 GPUs and 0 MB each; its 2 nodes have 1 CPUs, 0 GPUs"
    with pytest.raises(ValueError, match=f"^the cluster has {room}"):
        run_ranks(replace(ganged, processes=3), tmp_path, add_up)
    with pytest.raises(ValueError, match=r"room for 0 of 2 processes of 1 CPUs, 1 GPUs and .* or choose device cpu"):
        run_ranks(replace(ganged, device="cuda"), tmp_path, add_up)
    monkeypatch.setattr(starting, "PLACING", 1)
    other = ray.remote(num_cpus=1)(busy).remote()
    with pytest.raises(TimeoutError, match=r"other work took the room of 2 processes for 1 s; run again"):
        run_ranks(ganged, tmp_path, add_up)
    ray.cancel(other, force=True)
    monkeypatch.undo()
    assert run_ranks(ganged, tmp_path, add_up)[0] == 2


def test_other_code_other_data_and_failures_are_told(ganged, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"^process 1 of this training differs from the first in its content of"):
        run_ranks(ganged, tmp_path, unlike)
    with pytest.raises(ChildProcessError, match=r"^process 1 of .*, failed: it is missing here\. Run again"):
        run_ranks(ganged, tmp_path, partial(failing, 1, ValueError("it is missing here.")))
    with pytest.raises(ChildProcessError, match=r"(?s)^process 1 of .*, failed: .*in failing\n.*KeyError: 'a'"):
        run_ranks(ganged, tmp_path, partial(failing, 1, KeyError("a")))
    with pytest.raises(OSError, match=r"^the disk is full$"):
        run_ranks(ganged, tmp_path, partial(failing, 0, OSError("the disk is full")))
    monkeypatch.setattr(on_ray, "code_versions", lambda: {"aoq": "0.1"})
    with pytest.raises(ValueError, match=r"^2 of 2 nodes cannot work on this: node .* has aoq .*, not 0\.1; it has"):
        run_ranks(ganged, tmp_path, add_up)
    assert not list(tmp_path.iterdir())
