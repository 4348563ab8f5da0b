"""Extraction and encoding on a Ray cluster of two nodes: the bytes of one process.

Run by `make test-cluster`.
"""

from functools import partial

import numpy as np
import pytest

from aoq.pipeline import embedding
from aoq.pipeline.engine import Engine
from aoq.pipeline.prepare import extraction
from tests.cli.conftest import run
from tests.prepare.conftest import contents, encoded, picture
from tests.two_nodes import two_nodes

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


def test_the_folder_is_that_of_one_process(on_cluster, prepared, photos):
    whole = prepared(photos, "here", **DEFAULT)
    assert contents(on_cluster(photos)) == contents(whole)


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
