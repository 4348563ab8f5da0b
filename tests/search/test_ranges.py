"""Vectors read by range: the rows that are asked for and no others, refused where they are not what was hashed."""

from __future__ import annotations

from dataclasses import replace

import fsspec
import numpy as np
import pytest

from aoq.pipeline.search import ranges
from aoq.pipeline.search.cluster.ranged_job import ship_by_range
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.ranges import RangedVectors, piece_hashes
from aoq.pipeline.search.store import Folder

OFFSET = 128


@pytest.fixture(params=["file", "memory"])
def placed(request, tmp_path):
    """Vectors in a file, or in a file system of fsspec's, and their address."""
    vectors = np.random.default_rng(0).normal(size=(1300, 6)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    content = (tmp_path / "vectors.npy").read_bytes()
    if request.param == "file":
        return vectors, (tmp_path / "vectors.npy").as_uri(), (tmp_path / "vectors.npy").write_bytes
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/vectors.npy", content)
    return vectors, "memory://bucket/vectors.npy", lambda content: memory.pipe("/bucket/vectors.npy", content)


def opened(vectors, address):
    return RangedVectors(address, OFFSET, vectors.shape, piece_hashes(vectors))


def test_any_rows_are_those_of_the_matrix(placed):
    vectors, address, _ = placed
    found = opened(vectors, address)
    assert (len(found), found.shape, found.dtype) == (1300, vectors.shape, vectors.dtype)
    for start, stop in ((0, 1300), (0, 1), (1299, 1300), (511, 513), (512, 1024), (700, 700)):
        np.testing.assert_array_equal(found[start:stop], vectors[start:stop])


def test_only_the_pieces_of_the_rows_are_read(placed, monkeypatch):
    vectors, address, _ = placed
    asked = []

    class Noted:
        def __init__(self, file):
            self._file = file

        def read_at(self, size, offset):
            asked.append((offset - OFFSET, size))
            return self._file.read_at(size, offset)

    open_ranges = ranges.open_ranges
    monkeypatch.setattr(ranges, "open_ranges", lambda address: Noted(open_ranges(address)))
    opened(vectors, address)[600:700]
    assert asked == [(512 * 24, 512 * 24)]


def test_changed_rows_and_a_file_cut_short_are_refused(placed):
    vectors, address, put = placed
    changed = vectors.copy()
    changed[600, 3] += 1
    header = b"\0" * OFFSET
    put(header + changed.tobytes())
    found = opened(vectors, address)
    np.testing.assert_array_equal(found[0:512], vectors[:512])
    with pytest.raises(ValueError, match=r"is another file than the one that is mined, from row 512 on; leave it"):
        found[0:700]
    put(header + vectors.tobytes()[:-1])
    with pytest.raises(ValueError, match=r"vectors\.npy was cut short"):
        opened(vectors, address)[1299:1300]


@pytest.fixture
def job(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("images", 40), ("captions", 70)):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(count, 6)).astype(np.float32))
    images, captions = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("images", "captions"))
    problem = Problem(images, captions, np.full(70, -1, np.int32), 5, 4)
    fetched = {tmp_path / "captions.npy": (tmp_path / "captions.npy").as_uri()}
    return problem, ship_by_range(problem, Folder(tmp_path), fetched=fetched)


def test_shipped_vectors_are_the_same_where_they_are_opened(job, tmp_path):
    problem, shipped = job
    assert shipped.lacking() == []
    np.testing.assert_array_equal(shipped.images.open(tmp_path)[0:40], problem.images)
    np.testing.assert_array_equal(shipped.captions.open(tmp_path)[0:70], problem.captions)
    assert shipped.norms == problem.norms
    (tmp_path / "images.hashes").write_bytes(b"0" * 32)
    (said,) = shipped.lacking()
    assert "images.hashes was damaged after it was written; run again" in said


def test_a_node_that_reads_another_file_is_named(job, tmp_path):
    _, shipped = job
    np.save(tmp_path / "captions.npy", np.zeros((70, 6), np.float32))
    (said,) = shipped.lacking()
    assert said.startswith(f"cannot read file://{tmp_path}/captions.npy as it is here (file://")
    assert "is another file than the one that is mined, from row 0 on" in said
    missing = replace(shipped, captions=replace(shipped.captions, address="file:///nowhere.npy"))
    assert missing.lacking() == [
        "cannot read file:///nowhere.npy as it is here (there is no file at file:///nowhere.npy; is the address "
        "right, and may you read it?)"
    ]
