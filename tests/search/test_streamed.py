"""Blocks of images with captions streaming by: units of any size, arithmetic and device give one table."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search import rows
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.products import choice
from aoq.pipeline.search.products.int8 import int8_works
from aoq.pipeline.search.products.int16 import int16_works
from aoq.pipeline.search.ranges import stream
from aoq.pipeline.search.runners import run_in_process
from aoq.pipeline.search.store import Memory
from aoq.pipeline.search.streamed import block, merging, strips
from aoq.pipeline.search.streamed.backend import STREAMED
from aoq.pipeline.search.units import Backend, unit_name
from aoq.pipeline.tables.table import read_table

PRECISIONS = ["float32", "bfloat16", *["int16"] * int16_works(), *["int8"] * int8_works()]


def hashes(problem, folder, search=STREAMED, run=run_in_process):
    mine(problem, search=search, provenance={"dataset": "d"}, work=folder / "w", output=folder / "t", run=run)
    directions = read_table(folder / "t").manifest["directions"]
    assert all(directions[direction]["certified_share"] == 1 for direction in DIRECTIONS)
    return [directions[direction]["sha256"] for direction in DIRECTIONS]


def drawn(rng, count, kinds, nudge):
    """Few distinct vectors, many times each, some a hair apart, some zero or denormal."""
    distinct = rng.normal(size=(kinds, 5))
    distinct[: kinds // 4] *= rng.choice([0, 1e-40, 1e-3], (kinds // 4, 1))
    vectors = distinct[rng.integers(0, kinds, count)] * (1 + nudge * rng.integers(-1, 2, (count, 5)))
    return vectors.astype(np.float32)


@settings(max_examples=6, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kinds=st.integers(1, 60),
    nudge=st.sampled_from([0.0, 2.0**-22, 1e-3]),
    spare=st.sampled_from([(8, 16), (0, 1)]),
)
@example(seed=876, kinds=37, nudge=1e-3, spare=(8, 16))  # a chunk of denormals is lifted, a limit past float32
def test_any_cut_arithmetic_and_device_give_the_table_of_one_pass(tmp_path_factory, seed, kinds, nudge, spare):
    """Every unit has its own arithmetic or device; with little to spare nearly all captions are searched again."""
    rng = np.random.default_rng(seed)
    images, captions = (drawn(rng, count, kinds, nudge) for count in (60, 150))
    problem = Problem(images, captions, np.where(rng.random(150) < 0.1, -1, rng.integers(0, 60, 150)), 9, 6)

    def run(steps, problem, store, progress):
        for step in steps:
            for first, last in step.missing(store):
                edges = np.unique([first, *rng.integers(first, last, 2), last]).tolist()
                for start, stop in rng.permutation(list(pairwise(edges))).tolist():
                    patch.setattr(choice, "fastest_precision", lambda: rng.choice(PRECISIONS))
                    step.unit(start, stop, str(rng.choice(["cpu", "cpu:0"]))).do(problem, store)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block.Sizes, "of", lambda *_: block.Sizes(*map(int, rng.integers(20, 60, 3))))
        patch.setattr(strips, "SPARE", spare)
        patch.setattr(merging, "AGAIN", 7)
        cut = hashes(problem, tmp_path_factory.mktemp("cut"), run=run)
    assert cut == hashes(problem, tmp_path_factory.mktemp("whole"), "onepass")


def test_a_search_goes_on_in_units_of_another_size(tmp_path):
    rng = np.random.default_rng(0)
    images, captions = (rng.normal(size=(count, 8)).astype(np.float32) for count in (300, 700))
    problem = Problem(images, captions, np.full(700, -1), 9, 6)
    made = []

    def noted(step):
        return replace(
            step, run=lambda start, stop, *rest: made.append((step.kinds, start, stop)) or step.run(start, stop, *rest)
        )

    def half(steps, problem, store, progress):
        for step in steps[:2]:
            step.unit(0, step.row_count).do(problem, store)
        for start, stop in ((0, 70), (200, 250)):
            noted(steps[2]).unit(start, stop).do(problem, store)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hashes(problem, tmp_path, run=half)
    done = len(made)
    wholes = Backend("streamed", "", lambda problem: [noted(step) for step in STREAMED.plan(problem)])
    assert hashes(problem, tmp_path, wholes) == hashes(problem, tmp_path / "whole", "onepass")
    kinds = ("i2t", "own", "kept")
    assert made[done:] == [(kinds, 70, 200), (kinds, 250, 300), (("t2i",), 0, 700)]


def test_a_table_that_is_in_the_way_is_passed_over(tmp_path):
    """A process that was taken for lost writes late, with other rows than those that took its place."""
    rng = np.random.default_rng(1)
    images, captions = (rng.normal(size=(count, 8)).astype(np.float32) for count in (90, 200))
    problem = Problem(images, captions, np.full(200, -1), 9, 6)

    def late(steps, problem, store, progress):
        run_in_process(steps[:2], problem, store, progress)
        for start, stop in ((0, 30), (0, 50), (30, 60), (50, 90)):
            steps[2].unit(start, stop).do(problem, store)
        run_in_process(steps[3:], problem, store, progress)

    assert hashes(problem, tmp_path, run=late) == hashes(problem, tmp_path / "whole", "onepass")


def test_vectors_stream_in_order_and_few_at_a_time():
    vectors = np.arange(50, dtype=np.float32).reshape(25, 2)
    parts = list(stream(vectors, 7))
    assert [start for start, _ in parts] == [0, 7, 14, 21]
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), vectors)


def test_a_folder_that_lacks_what_was_written_is_refused(monkeypatch):
    monkeypatch.setattr(rows, "PATIENCE", 0.0)
    store = Memory()
    for start, stop in ((0, 4), (6, 9)):
        store.write(unit_name("kept", start, stop), pa.table({"caption": [start]}))
    with pytest.raises(ValueError, match=r"tables 'kept' of some of 9 rows are not there, .*Run again"):
        rows.read_all(store, "kept", 9)
    store.write(unit_name("kept", 4, 6), pa.table({"caption": [4]}))
    assert rows.read_all(store, "kept", 9)["caption"].to_pylist() == [0, 4, 6]
    with pytest.raises(ValueError, match="of some of 10 rows"):
        rows.read_all(store, "kept", 10)
