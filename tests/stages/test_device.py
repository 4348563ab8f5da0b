"""Every entry point computes on the device that is named: nothing it makes lies on the CPU; results are the CPU's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from aoq.pipeline.build import Build
from aoq.pipeline.cli import main
from aoq.pipeline.engine import Engine
from aoq.pipeline.search import kept, scan
from aoq.pipeline.search.device import room_on
from aoq.pipeline.settings import set_engine
from aoq.pipeline.stages.plan import MAKERS
from aoq.pipeline.tables.table import read_table
from tests.search.problems import NAMES, PINNED, pinned_lists, problem_named
from tests.stages.conftest import OWN
from tests.training.simulated import DEVICE, Simulated

THERE = Engine(device=str(DEVICE), threads=1)


def test_mined_lists_are_those_that_are_pinned(monkeypatch):
    """In small tiles, and for every third problem with little room."""
    room = room_on(torch.device("cpu"), 10**9, 1)._replace(rows=30, columns=50)
    monkeypatch.setattr(scan, "room_on", lambda *given: room)
    for place, name in enumerate([name for name in NAMES if name.split("/")[1] != "8"][::18]):
        with monkeypatch.context() as little, Simulated():
            if place % 3 == 0:
                little.setattr(kept, "width_for", lambda h, candidates: h + 5)
            assert pinned_lists(replace(problem_named(name), device=str(DEVICE))) == PINNED[name]


@pytest.fixture
def made_there(tmp_path):
    """Makes a stage once more, on the device."""

    def make_again(chain, stage):
        folder = tmp_path / "there" / stage
        folder.mkdir(parents=True)
        build = Build(folder)
        with build.collecting(), Simulated():
            MAKERS[stage](chain, build, THERE)
        return folder, build.notes

    return make_again


def hashes(folder):
    return [about["sha256"] for about in read_table(folder).manifest["directions"].values()]


def test_embeddings_and_tables_are_the_cpus(make, made_there):
    chain = make("trial", "mining")
    vectors, _ = made_there(chain, "embeddings")
    for side in ("images", "captions"):
        found, expected = (np.load(folder / f"{side}.npy") for folder in (vectors, chain["embeddings"].path))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    table, _ = made_there(chain, "hard_negatives")
    assert hashes(table / "table") == hashes(chain["hard_negatives"].path / "table")


@pytest.mark.parametrize("model", ["vsepp", "scan"])
def test_trainings_and_evaluations_are_the_cpus(make, made_there, taught_by, model):
    """A teacher and its student, and a student that attends."""
    student = {"second_round": 'epochs = 1, batch_size = 64, loss.name = "adapoffquin"'}
    stages = ["second_round", "evaluation"]
    chain = make("teacher", "mining", *stages, teacher=OWN.replace("16", "64"), **student)
    trained = [(chain, "first_round"), (chain, "second_round")]
    if model == "scan":
        chain = make("trial", "dataset", *stages, model=model, teacher=taught_by("teacher"), **student)
        trained = [(chain, "second_round")]
    for chain, stage in trained:
        folder, notes = made_there(chain, stage)
        assert notes["device"] == str(DEVICE)
        weights, expected = (load_file(each / "model.safetensors") for each in (folder, chain[stage].path))
        for name, one in expected.items():
            torch.testing.assert_close(weights[name], one, rtol=1e-3, atol=1e-4)
    _, notes = made_there(chain, "evaluation")
    assert notes["metrics"] == chain["evaluation"].manifest()["metrics"]


def test_aoq_mine_searches_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for side, rows in (("images", 40), ("captions", 120)):
        np.save(f"{side}.npy", rng.normal(size=(rows, 8)).astype(np.float32))
    given = ["mine", "images.npy", "captions.npy"]
    options = ["--per-image", "3", "--h-captions", "20", "--h-images", "10"]
    set_engine(device="cpu")
    assert CliRunner().invoke(main, [*given, "here", *options], catch_exceptions=False).exit_code == 0
    set_engine(device=str(DEVICE))
    try:
        with Simulated():
            assert CliRunner().invoke(main, [*given, "there", *options], catch_exceptions=False).exit_code == 0
        set_engine(device="nowhere")
        refused = CliRunner().invoke(main, [*given, "elsewhere", *options])
    finally:
        set_engine(device="auto")
    assert hashes("there") == hashes("here")
    assert refused.exit_code == 1
    assert "[engine] device is 'nowhere'; use auto, cpu, cuda, or cuda:0" in refused.output
    assert not (tmp_path / "elsewhere").exists()
