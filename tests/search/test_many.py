"""A search streamed by several nodes: one lost, one stuck, one with a GPU, each with its own arithmetic; one table.

Run by `make test-cluster`.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aoq
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.cluster import dispatch
from aoq.pipeline.search.cluster.ranged_job import ship_by_range
from aoq.pipeline.search.cluster.units import run_on_ray
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.runners import run_in_process
from aoq.pipeline.search.store import Folder
from aoq.pipeline.tables.table import read_table
from tests.two_nodes import STORE_BYTES, two_nodes, wait_for

pytestmark = pytest.mark.cluster

HERE = Path(aoq.__file__).parent.parent
IMAGES, CAPTIONS = 3000, 4000
MEMORY = 50_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Any]:
    """Four nodes. Their workers find aoq as installed, not in this folder: a node may have another."""
    before, path = Path.cwd(), os.environ.get("PYTHONPATH")
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    os.environ["PYTHONPATH"] = str(HERE)
    try:
        with two_nodes(__name__, 2 * MEMORY, more=3) as started:
            yield started
    finally:
        os.chdir(before)
        os.environ.pop("PYTHONPATH")
        os.environ.update({} if path is None else {"PYTHONPATH": path})


@pytest.fixture
def world(tmp_path) -> Problem:
    rng = np.random.default_rng(3)
    for name, count in (("images", IMAGES), ("captions", CAPTIONS)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(count, 6)).astype(np.float32))
    return opened(tmp_path)


def opened(folder: Path) -> Problem:
    vectors = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "captions"))
    return Problem(*vectors, np.arange(CAPTIONS, dtype=np.int32) % IMAGES, 7, 5, MEMORY)


def mined(problem, folder, run=run_in_process, search="streamed"):
    given = {"search": search, "provenance": {"dataset": "d"}, "run": run}
    mine(problem, work=folder / "work", output=folder / "table", **given)
    return [read_table(folder / "table").manifest["directions"][direction]["sha256"] for direction in DIRECTIONS]


def on(cluster, change=lambda run: run):
    """A runner on the cluster, where the blocks of images are done in a changed way."""
    whole = partial(run_on_ray, ship=partial(ship_by_range, fetched={}), address=cluster.address, cpus=1)

    def changed(steps, problem, store, progress):
        sample, limits, strips, merges = steps
        whole([sample, limits, replace(strips, run=change(strips.run)), merges], problem, store, progress)

    return changed


def once(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def by_node(run, precisions, stuck, awaited, notes, start, stop, device, problem, store):
    """Every node multiplies in its own way. Some get stuck in their first block; all wait until the awaited began."""
    import ray

    from aoq.pipeline.search.products import choice

    node = ray.get_runtime_context().get_node_id()
    choice.fastest_precision = lambda: precisions[node]
    if once(notes / f"began-{node}") and node in stuck:
        time.sleep(3600)
    wait_for(lambda: all((notes / f"began-{node}").exists() for node in awaited))
    made = run(start, stop, device, problem, store)
    (notes / f"{precisions[node]}-{bool(ray.get_gpu_ids())}-{start}").touch()
    return made


def test_nodes_of_which_one_is_lost_and_one_stuck_make_the_table_of_one_process(cluster, world, tmp_path, monkeypatch):
    import ray

    monkeypatch.setattr(dispatch, "LEAST", 200)
    monkeypatch.setattr(dispatch, "SLOW", (2.0, 10.0))
    fifth = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE_BYTES, memory=MEMORY)
    lost, slow, gpu = cluster.others[1].node_id, cluster.others[0].node_id, fifth.node_id
    ids = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    precisions = {**dict(zip(ids, ("float32", "int16", "int8", "float32", "int16"), strict=True)), gpu: "bfloat16"}

    def lose_it():
        wait_for((tmp_path / f"began-{lost}").exists)
        cluster.remove_node(cluster.others[1], allow_graceful=False)

    losing = threading.Thread(target=lose_it, daemon=True)
    losing.start()
    given = precisions, (lost, slow), (lost, slow, gpu), tmp_path
    there = mined(world, tmp_path / "there", on(cluster, lambda run: partial(by_node, run, *given)))
    losing.join()
    cluster.remove_node(fifth)
    assert there == mined(world, tmp_path / "here", search="onepass")
    done = {tuple(path.name.split("-")[:2]) for path in tmp_path.glob("*-*-*")}
    assert len({precision for precision, _ in done}) >= 2
    assert ("bfloat16", "True") in done
    assert {gpu for precision, gpu in done if precision != "bfloat16"} <= {"False"}


def test_a_node_with_other_code_is_refused_in_one_sentence(cluster, world, tmp_path):
    copy = tmp_path / "copy"
    for folder in ("aoq", "models", "pipeline", "tasks", "configs"):
        shutil.copytree(HERE / folder, copy / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "pipeline" / "search" / "problem.py").open("a") as changed:
        changed.write("\n")
    other = cluster.add_node(
        num_cpus=1, object_store_memory=STORE_BYTES, memory=MEMORY, env_vars={"PYTHONPATH": str(copy)}
    )
    with pytest.raises(
        ValueError,
        match=rf"^1 of \d nodes cannot work on this: node \S+ \({other.node_id[:8]}\) has aoq's code \w+, not \w+\. "
        r"Repair or stop these nodes; all need one environment and one shared folder\.$",
    ):
        mined(world, tmp_path, on(cluster))
    cluster.remove_node(other)
    assert not list((tmp_path / "work").glob("*.unit"))


DRIVER = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from functools import partial
from tests.search.test_many import dispatch, mined, on, opened

def slowly(run, *given):
    time.sleep(0.7)
    return run(*given)

class Cluster:
    address = sys.argv[2]

dispatch.LEAST, folder = 200, Path(sys.argv[1])
mined(opened(folder), folder, on(Cluster, lambda run: partial(slowly, run)))
"""


def test_a_driver_that_is_killed_goes_on(cluster, world, tmp_path):
    (tmp_path / "driver.py").write_text(DRIVER)
    command = [sys.executable, str(tmp_path / "driver.py"), str(tmp_path), cluster.address]
    driver = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(HERE)})
    wait_for(lambda: len(list((tmp_path / "work").glob("kept-*.unit"))) >= 3 or driver.poll() is not None)
    driver.send_signal(signal.SIGKILL)
    assert driver.wait() == -signal.SIGKILL
    whole = {path.stem.removeprefix("kept-") for path in (tmp_path / "work").glob("kept-*.unit")}
    done = {path: path.stat().st_mtime_ns for rows in whole for path in (tmp_path / "work").glob(f"*-{rows}.unit")}
    assert len(done) >= 9
    assert mined(world, tmp_path, on(cluster)) == mined(world, tmp_path / "here", search="onepass")
    assert {path: path.stat().st_mtime_ns for path in done} == done


CHILD = f"""
import pickle, resource, sys
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from aoq.pipeline.search.runners import run_in_process
from aoq.pipeline.search.streamed.backend import STREAMED

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def run(path):
    job = pickle.loads(path.read_bytes())
    problem = job.open()
    run_in_process(STREAMED.plan(problem), problem, job.store, lambda *_: None)

run(Path(sys.argv[1]))
before = peak()
run(Path(sys.argv[2]))
print(peak() - before)
"""


def shipped(folder: Path, images: int, captions: int) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("images", images), ("captions", captions)):
        np.save(folder / f"{name}.npy", rng.standard_normal((count, 256), dtype=np.float32))
    vectors = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "captions"))
    problem = Problem(*vectors, np.full(captions, -1, np.int32), 10, 5, MEMORY)
    (folder / "job").write_bytes(pickle.dumps(ship_by_range(problem, Folder(folder), fetched={})))
    return folder / "job"


def test_a_worker_holds_no_more_than_its_memory_however_many_vectors_there_are(tmp_path):
    (tmp_path / "child.py").write_text(CHILD)
    jobs = [shipped(tmp_path / "small", 600, 5000), shipped(tmp_path / "large", 600, 100_000)]
    ran = subprocess.run(
        [sys.executable, tmp_path / "child.py", *jobs], env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True
    )
    assert ran.returncode == 0, ran.stderr.decode()
    assert int(ran.stdout) < MEMORY < (tmp_path / "large" / "captions.npy").stat().st_size / 2
