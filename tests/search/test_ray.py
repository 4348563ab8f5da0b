"""Mining on a Ray cluster of two nodes: the same table, whatever is lost on the way; nodes that do not fit are named.

Run by `make test-cluster`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.cluster import job as jobs
from aoq.pipeline.search.cluster import units
from aoq.pipeline.search.cluster.search_job import ship_problem
from aoq.pipeline.search.onepass import ONE_PASS
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.runners import run_in_process
from aoq.pipeline.search.tiles import TILE_IMAGES
from aoq.pipeline.search.units import Unit, never
from aoq.pipeline.tables.table import read_table
from tests.two_nodes import STORE_BYTES, two_nodes, wait_for

pytestmark = pytest.mark.cluster

SHIP = partial(ship_problem, fetched={})
IN_A_FOLDER = replace(ONE_PASS, is_small=never)
IMAGES, EACH = 2 * TILE_IMAGES + 100, 1
MEMORY = 50_000_000


@pytest.fixture(scope="module")
def cluster():
    with two_nodes(__name__, 2 * MEMORY) as started:
        yield started


@pytest.fixture
def world(tmp_path):
    """Mapped vectors, for three units of images."""
    rng = np.random.default_rng(3)
    for name, count in (("images", IMAGES), ("captions", IMAGES * EACH)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(count, 6)).astype(np.float32))
    vectors = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("images", "captions"))
    return Problem(*vectors, np.repeat(np.arange(IMAGES, dtype=np.int32), EACH), 7, 5, MEMORY)


def mined(problem, folder, run=run_in_process, **options):
    given = {"search": IN_A_FOLDER, "provenance": {"dataset": "d"}, "run": run, **options}
    mine(problem, work=folder / "work", output=folder / "table", **given)
    return [read_table(folder / "table").manifest["directions"][direction]["sha256"] for direction in DIRECTIONS]


def on(cluster, change=lambda unit: unit):
    """A runner on the cluster, where the units of the pass over the tiles, three, are changed in some way."""
    run = partial(units.run_on_ray, ship=SHIP, address=cluster.address, cpus=1)

    def changed(steps, problem, store, progress):
        first, tiles, last = steps
        run([first, [replace(unit, run=change(unit.run)) for unit in tiles], last], problem, store, progress)

    return changed


def once(marker):
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def dying(marker, unit, problem, store):
    if once(marker):
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

    def lose_it():
        wait_for(marker.exists)
        cluster.remove_node(third, allow_graceful=False)

    losing = threading.Thread(target=lose_it, daemon=True)
    losing.start()
    run = on(cluster, lambda unit: partial(stuck_on, third.node_id, marker, unit))
    assert mined(world, tmp_path / "there", run) == mined(world, tmp_path / "here")
    losing.join()
    wait_for(lambda: sum(node["Alive"] for node in ray.nodes()) == 2)


def failing(problem, store):
    raise ValueError("this unit cannot be")


def test_a_units_own_error_ends_the_run_and_what_is_finished_stays(cluster, world, tmp_path):
    def second_step(steps, problem, store, progress):
        run = partial(units.run_on_ray, ship=SHIP, address=cluster.address, cpus=1)
        run([steps[0], [Unit(("never",), failing)]], problem, store, progress)

    with pytest.raises(ValueError, match=r"^this unit cannot be$"):
        mined(world, tmp_path, second_step)
    limits = {path: path.stat().st_mtime_ns for path in (tmp_path / "work").glob("limits-*.unit")}
    assert len(limits) == 2
    seen = {}
    mined(world, tmp_path, progress=lambda *_: seen.update({path: path.stat().st_mtime_ns for path in limits}))
    assert seen == limits


def writing_for_ever(problem, store):
    while True:
        store.write("begun", pa.table({"at": [time.time()]}))


def failing_once_begun(problem, store):
    wait_for(lambda: store.has("begun"))
    raise ValueError("this unit cannot be")


def test_nothing_is_written_after_an_error_ended_the_run(cluster, world, tmp_path):
    def second_step(steps, problem, store, progress):
        run = partial(units.run_on_ray, ship=SHIP, address=cluster.address, cpus=1)
        run([[Unit(("never",), failing_once_begun), Unit(("begun",), writing_for_ever)]], problem, store, progress)

    with pytest.raises(ValueError, match=r"^this unit cannot be$"):
        mined(world, tmp_path, second_step)
    written = (tmp_path / "work" / "begun.unit").stat().st_mtime_ns
    time.sleep(1)
    assert (tmp_path / "work" / "begun.unit").stat().st_mtime_ns == written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"versions": "1.0"}, r"has numpy {numpy}, not 1\.0"),
        (
            {"store": "elsewhere"},
            r"cannot read and write in .*elsewhere .*: that folder must be one that all nodes share",
        ),
        ({"images": "other.npy"}, r"reads another .*other\.npy \(sha256"),
        ({"captions": "none.npy"}, r"cannot read .*none\.npy"),
    ],
)
def test_a_node_that_does_not_fit_is_named_before_anything_is_mined(
    cluster, world, tmp_path, monkeypatch, change, message
):
    second = cluster.second.node_id
    np.save(tmp_path / "other.npy", np.zeros((IMAGES, 6), np.float32))

    def differs_there(job, token):
        import ray

        from aoq.pipeline.search.cluster.job import problems_here  # a worker's own: here it is this function

        if ray.get_runtime_context().get_node_id() == second:
            job = replace(job, **{name: changed(job, name) for name in change})
        return problems_here(job, token)

    def changed(job, name):
        value = getattr(job, name)
        if name in ("images", "captions"):
            return replace(value, path=value.path.with_name(change[name]))
        if name == "store":
            return replace(value, path=value.path / change[name])
        return tuple({**dict(value), "numpy": change[name]}.items())

    monkeypatch.setattr(jobs, "problems_here", differs_there)
    expected = rf"^1 of 2 nodes cannot work on this: node \S+ \({second[:8]}\) .*" + message.replace(
        "{numpy}", np.__version__.replace(".", r"\.")
    )
    with pytest.raises(ValueError, match=expected):
        mined(world, tmp_path, on(cluster))
    assert not list((tmp_path / "work").glob("*.unit"))
    assert not list((tmp_path / "work").glob("token*"))


def test_units_that_take_a_gpu_are_done_where_there_is_one(cluster, world, tmp_path):
    def ship(problem, store):
        return replace(SHIP(problem, store), gpus=1)

    run = partial(units.run_on_ray, ship=ship, address=cluster.address, cpus=1)
    with pytest.raises(ValueError, match=r"room for a unit of 1 threads, a GPU and 50 MB; there are 2 nodes"):
        mined(world, tmp_path / "nowhere", run)
    third = cluster.add_node(num_cpus=1, num_gpus=1, object_store_memory=STORE_BYTES, memory=MEMORY)
    there = mined(world, tmp_path / "there", run)
    cluster.remove_node(third)
    assert there == mined(world, tmp_path / "here")


def test_a_unit_that_no_node_has_room_for_is_refused(cluster, world, tmp_path):
    with pytest.raises(ValueError, match=r"no node .* room for a unit of 1 threads and 900 MB; there are 2 nodes"):
        mined(replace(world, memory=900_000_000), tmp_path, on(cluster))
