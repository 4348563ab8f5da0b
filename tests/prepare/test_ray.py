"""Extraction and encoding on a Ray cluster of two nodes: the bytes of one process, whatever is lost on the way.

Run by `make test-cluster`.
"""

import os
import signal
from functools import partial

import numpy as np
import pytest

from aoq.pipeline import embedding, on_ray
from aoq.pipeline.engine import Engine
from aoq.pipeline.prepare import blocks, extraction
from aoq.pipeline.prepare.sources.images import ImageFiles
from tests.cli.conftest import run
from tests.prepare.conftest import contents, encoded, picture
from tests.two_nodes import is_first, two_nodes

pytestmark = pytest.mark.cluster

DEFAULT = {"extractor": "efficientnet-lite0", "tokens": "pooled"}


@pytest.fixture(scope="module")
def cluster():
    with two_nodes(__name__, 4_000_000_000) as started:
        yield started


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Shrink the blocks of this process, which plans them."""
    monkeypatch.setattr(extraction, "BLOCK_IMAGES", 6)
    monkeypatch.setattr(embedding, "STORE_ROWS", 8)
    monkeypatch.setattr(embedding, "BATCH", 8)


@pytest.fixture
def on_cluster(cluster, prepared):
    """Prepare photographs on the cluster."""
    engine = Engine("cpu", backend="ray", ray_address=cluster.address)
    return partial(prepared, name="there", engine=engine, **DEFAULT)


def dying(marker, reader, job, store):
    from aoq.pipeline.prepare.blocks import extract_block  # a worker's own: here it is this function

    if is_first(marker):
        os.kill(os.getpid(), signal.SIGKILL)
    return extract_block(reader, job, store)


def test_the_folder_is_that_of_one_process_though_a_worker_dies(on_cluster, prepared, photos, tmp_path, monkeypatch):
    marker = tmp_path / "died"
    whole = prepared(photos, "here", **DEFAULT)
    monkeypatch.setattr(blocks, "extract_block", partial(dying, marker))
    assert contents(on_cluster(photos)) == contents(whole)
    assert marker.exists()


def test_a_node_that_does_not_see_the_photographs_is_named(cluster, on_cluster, photos, monkeypatch, tmp_path):
    second = cluster.second.node_id

    def differs_there(versions, seen, lacking):
        import ray

        from aoq.pipeline.on_ray import problems_here  # a worker's own: here it is this function

        if ray.get_runtime_context().get_node_id() == second:
            opened, _, sha256s = lacking.args
            lacking = partial(lacking.func, opened, ImageFiles(["/nowhere.png"] * 16), sha256s)
        return problems_here(versions, seen, lacking)

    monkeypatch.setattr(on_ray, "problems_here", differs_there)
    message = (
        rf"^1 of 2 nodes cannot work on this: node \S+ \({second[:8]}\) does not read /nowhere\.png as it is here\."
    )
    with pytest.raises(ValueError, match=message):
        on_cluster(photos)
    assert list((tmp_path / "there.work" / "blocks").iterdir()) == []


def test_vectors_are_those_of_one_process(cluster, clip, photos, tmp_path):
    run("prepare", photos, tmp_path / "data", "--threads", 1, "--no-thumbnails")
    command = "embed", tmp_path / "data", "--encoder", f"transformers:{clip[2]}"
    on_ray = "--backend", "ray", "--ray-address", cluster.address
    for name, where in (("here", ("--threads", 1)), ("there", on_ray)):
        run(*command, tmp_path / name, *where)
        assert np.load(tmp_path / name / "captions.npy").shape == (32, 6)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    (photos.parent / "03.png").write_bytes(encoded(picture(99)))
    ended = [run(*command, tmp_path / "again", *where, code=1) for where in (("--threads", 1), on_ray)]
    message = [one.stderr.splitlines()[-1] for one in ended]
    assert "03.png: was changed since the folder was prepared; prepare the folder again." in message[0]
    assert message[0] == message[1]
