"""A training by two processes of this machine: it ends where one process does, and survives the loss of one."""

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import HashStore
from torch.distributed.launcher.api import LaunchConfig

from aoq.pipeline.build import UNITS
from aoq.pipeline.data.noise import CLEAN_PAIRS, read_clean_pairs
from aoq.pipeline.engine import Engine
from aoq.pipeline.stages import processes
from aoq.pipeline.stages.processes import run_ranks
from aoq.pipeline.training.checkpoint import CHECKPOINTS
from aoq.pipeline.training.co_teaching import NETWORK_FILES
from tests.chaos.forks import PRELOADED
from tests.stages.conftest import ENGINE, make_stage

TWO = replace(ENGINE, processes=2)
LEARNT = 'epochs = 2, batch_size = 16, learning_rate = 1e-3, loss.name = "infonce"'


@pytest.fixture(autouse=True)
def forked(monkeypatch):
    """Fork the processes from one that has imported what they import: starting Python and torch takes seconds."""
    multiprocessing.set_forkserver_preload([*PRELOADED])
    monkeypatch.setattr(processes, "LaunchConfig", partial(LaunchConfig, start_method="forkserver"))


def train(chain, engine, stage="second_round"):
    make_stage(chain, stage, engine)
    return chain[stage].manifest()


def weights(chain, stage="second_round"):
    return load_file(chain[stage].path / "model.safetensors")


def test_two_processes_end_where_one_does(make, taught_by, file_of):
    """A student on a table, with a loss that learns and a teacher that attends."""
    make("own", "mining")
    make("fragments", "second_round", model="scan", teacher=taught_by("own"), loss="online")
    taught = LEARNT + f', distillation.teachers = ["{file_of("fragments")}"]'
    one = make("one", "mining", "second_round", second_round=taught)
    two = make("two", second_round=taught + ", chunk = 64")  # a key of its own, and no chunk is as large
    assert two["second_round"].key != one["second_round"].key
    said = train(two, TWO)
    alone = one["second_round"].manifest()
    assert (said["processes"], alone["processes"]) == (2, 1)
    assert said["dev_rsum_by_epoch"] == pytest.approx(alone["dev_rsum_by_epoch"], abs=10)
    for epoch, learnt in enumerate(alone["learnt_by_epoch"]):
        assert said["learnt_by_epoch"][epoch] == pytest.approx(learnt, rel=1e-4)
    torch.testing.assert_close(weights(two), weights(one), rtol=1e-3, atol=1e-4)
    assert not multiprocessing.active_children()


def test_the_loss_of_one_ends_all_and_another_number_goes_on(make):
    """Killed after its first checkpoint, and resumed by one process."""
    long = LEARNT.replace("epochs = 2", "epochs = 10")
    chain = make("cut", "mining", second_round=long)
    checkpoint = chain["second_round"].work / UNITS / CHECKPOINTS[0]

    def kill():
        while not checkpoint.exists():
            time.sleep(0.01)
        os.kill(max(other.pid for other in multiprocessing.active_children()), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    started = time.monotonic()
    with pytest.raises(ChildProcessError, match=r"process 1 of this training was killed by SIGKILL, .*\. Run again"):
        train(chain, TWO)
    killer.join()
    assert time.monotonic() - started < 60
    assert checkpoint.exists()
    said = train(chain, ENGINE)
    assert len(said["dev_rsum_by_epoch"]) == 10
    assert said["processes"] == 1


def failing(rank, what, processes, engine):
    if processes.rank == rank:
        raise what
    return float(processes.add_up(torch.ones(1)))


@pytest.mark.parametrize(
    ("rank", "what", "kind", "message"),
    [
        (1, ValueError("it is missing."), ChildProcessError, r"^process 1 .* failed: it is missing\."),
        (0, OSError(28, "the disk is full"), OSError, "the disk is full"),
    ],
)
def test_what_fails_in_one_is_said(tmp_path, rank, what, kind, message):
    with pytest.raises(kind, match=message):
        run_ranks(TWO, tmp_path, partial(failing, rank, what))
    assert not multiprocessing.active_children()


def test_who_follows_ends_where_the_first_process_fails(make, monkeypatch):
    store, artifact = HashStore(), make("one")["dataset"]
    monkeypatch.setattr(processes, "_store", lambda: store)
    processes.announce_failure(artifact)
    with pytest.raises(ChildProcessError, match=r"^the first process of this run did not make .*; its log says why\.$"):
        processes.follow(ENGINE, artifact, failing)


NCR = """
dataset.folder = "one"
model = {{name = "vsepp", embedding_size = 16, word_size = 8}}
co_teaching = {{epochs = 2, warmup_epochs = 1, batch_size = 40}}
"""


@pytest.mark.slow
def test_two_networks_are_co_taught_by_two_processes_as_by_one(make):
    """Two processes give the same probabilities and the same weights of both networks as one."""
    chain, made = make("ncr", "dataset", text=NCR), []
    for engine in (ENGINE, TWO):
        manifest, folder = train(chain, engine), chain["second_round"].path
        networks = [load_file(folder / name) for name in NETWORK_FILES]
        made.append((manifest, networks, read_clean_pairs(folder / CLEAN_PAIRS, 200)))
        folder.rename(folder.with_name(f"made {len(made)}"))
    (alone, expected, sure), (together, others, as_sure) = made
    assert (alone["processes"], together["processes"]) == (1, 2)
    assert together["steps"] == alone["steps"]
    torch.testing.assert_close(others, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(as_sure, sure, atol=1e-3)
    assert 0 < sure.mean() < 1


def test_threads_are_shared():
    Engine("cpu").torch_device(0, 2)
    assert torch.get_num_threads() == max(1, len(os.sched_getaffinity(0)) // 2)
    with pytest.raises(ValueError, match="processes is 0; give at least 1"):
        Engine(processes=0)
