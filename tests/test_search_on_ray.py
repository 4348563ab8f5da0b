"""Mining on a Ray cluster of two nodes: the same table, whatever is lost on the way; nodes that do not fit are named.

Run by `make test-cluster`.
"""

import os
import re
import signal
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import aoq
from aoq.pipeline import on_ray
from aoq.pipeline.engine import Engine
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.on_ray import run_on_ray, ship_problem
from aoq.pipeline.search.exact import IMAGE_ROWS, ONE_PASS
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.units import Unit, run_in_process
from aoq.pipeline.tables.table import read_table
from tests.two_nodes import STORE_BYTES, begin_to_lose, is_first, two_nodes, wait_for

pytestmark = pytest.mark.cluster

HERE = Path(aoq.__file__).parent.parent
SHIP = partial(ship_problem, fetched={})
IMAGES, EACH = 2 * IMAGE_ROWS + 100, 1
MEMORY = 50_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes, whose workers find aoq as installed, not in this folder: a node may have another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("elsewhere"))
        patch.setenv("PYTHONPATH", str(HERE))
        with two_nodes(__name__, 2 * MEMORY) as started:
            yield started


@pytest.fixture
def world(tmp_path):
    """Mapped vectors, for three units of images."""
    rng = np.random.default_rng(3)
    for name, count in (("images", IMAGES), ("captions", IMAGES * EACH)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(count, 6)).astype(np.float32))
    return opened(tmp_path)


def opened(folder):
    vectors = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "captions"))
    return Problem(*vectors, np.repeat(np.arange(IMAGES, dtype=np.int32), EACH), 7, 5, MEMORY)


def mined(problem, folder, run=run_in_process, **options):
    given = {"search": ONE_PASS, "provenance": {"dataset": "d"}, "run": run, **options}
    mine(problem, work=folder / "work", output=folder / "table", **given)
    return [read_table(folder / "table").manifest["directions"][direction]["sha256"] for direction in DIRECTIONS]


def whole(cluster, ship=SHIP):
    return partial(run_on_ray, ship=ship, engine=Engine(threads=1, backend="ray", ray_address=cluster.address))


def on(cluster, change=lambda unit: unit):
    """A runner on the cluster, where the units of the pass over the tiles, three, are changed in some way."""
    run = whole(cluster)

    def changed(steps, problem, store, progress):
        first, tiles, last = steps
        run([first, [replace(unit, run=change(unit.run)) for unit in tiles], last], problem, store, progress)

    return changed


def dying(marker, unit, problem, store):
    if is_first(marker):
        os.kill(os.getpid(), signal.SIGKILL)
    return unit(problem, store)


def stuck_on(node, marker, unit, problem, store):
    """On this node a unit never ends; on others none ends before that."""
    import ray

    if ray.get_runtime_context().get_node_id() == node:
        marker.touch()
        time.sleep(3600)
    wait_for(marker.exists)
    return unit(problem, store)


def test_the_table_is_the_same_though_a_process_dies(cluster, world, tmp_path):
    marker = tmp_path / "died"
    whole = mined(world, tmp_path / "here")
    assert mined(world, tmp_path / "there", on(cluster, lambda unit: partial(dying, marker, unit))) == whole
    assert marker.exists()


def test_the_table_is_the_same_though_a_node_is_lost(cluster, world, tmp_path):
    import ray

    third, marker = cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES, memory=MEMORY), tmp_path / "stuck"
    losing = begin_to_lose(cluster, third, marker)
    run = on(cluster, lambda unit: partial(stuck_on, third.node_id, marker, unit))
    assert mined(world, tmp_path / "there", run) == mined(world, tmp_path / "here")
    losing.join()
    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 2)


def writing_for_ever(problem, store):
    while True:
        store.write("begun", pa.table({"at": [time.time()]}))


def failing_once_begun(problem, store):
    wait_for(lambda: store.has("begun"))
    raise ValueError("this unit cannot be")


def test_a_units_own_error_ends_the_run_what_is_finished_stays_and_nothing_more_is_written(cluster, world, tmp_path):
    def second_step(steps, problem, store, progress):
        run = whole(cluster)
        units = [Unit(("never",), failing_once_begun), Unit(("begun",), writing_for_ever)]
        run([steps[0], units], problem, store, progress)

    with pytest.raises(ValueError, match=r"^this unit cannot be$"):
        mined(world, tmp_path, second_step)
    work = tmp_path / "work"
    finished = {path: path.stat().st_mtime_ns for path in (*work.glob("limits-*.unit"), work / "begun.unit")}
    assert len(finished) == 3
    time.sleep(1)
    seen = {}
    mined(world, tmp_path, progress=lambda *_: seen.update({path: path.stat().st_mtime_ns for path in finished}))
    assert seen == finished


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("1.0", rf"has numpy {re.escape(np.__version__)}, not 1\.0"),
        ("elsewhere", r"cannot write in .*elsewhere .*: all nodes must share it, at one path"),
        ("other.npy", r"reads different vectors than this machine"),
        ("none.npy", r"cannot read the vectors \(.*none\.npy"),
    ],
)
def test_a_node_that_does_not_fit_is_named_before_anything_is_mined(
    cluster, world, tmp_path, monkeypatch, change, message
):
    second = cluster.second.node_id
    np.save(tmp_path / "other.npy", np.zeros((IMAGES, 6), np.float32))

    def differs_there(versions, seen, lacking):
        import ray

        from aoq.pipeline.on_ray import problems_here  # a worker's own: here it is this function

        if ray.get_runtime_context().get_node_id() == second:
            versions = {**versions, "numpy": change} if change == "1.0" else versions
            seen = seen.parent / change / seen.name if change == "elsewhere" else seen
            if change.endswith(".npy"):
                opened, sha256 = lacking.args
                lacking = partial(lacking.func, partial(opened.func, {tmp_path / change: ""}, opened.args[1]), sha256)
        return problems_here(versions, seen, lacking)

    monkeypatch.setattr(on_ray, "problems_here", differs_there)
    with pytest.raises(ValueError, match=rf"^1 of 2 nodes cannot work on this: node \S+ \({second[:8]}\) .*{message}"):
        mined(world, tmp_path, on(cluster))
    assert not list((tmp_path / "work").iterdir())


def with_a_gpu(unit, problem, store):
    import ray

    assert ray.get_gpu_ids()
    return unit(problem, store)


def test_units_take_a_gpu_where_there_is_one(cluster, world, tmp_path):
    said = r"room for 0 of 1 processes of 1 CPUs, 1 GPUs and 50 MB each; its 2 nodes have 1 CPUs, 0 GPUs and 100 MB; 1"
    with pytest.raises(ValueError, match=said):
        mined(world, tmp_path / "no", whole(cluster, lambda *given: replace(SHIP(*given), device="cuda")))
    third = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE_BYTES, memory=MEMORY)
    there = mined(world, tmp_path / "there", on(cluster, lambda unit: partial(with_a_gpu, unit)))
    cluster.remove_node(third)
    assert there == mined(world, tmp_path / "here")
