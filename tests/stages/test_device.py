"""Every entry point computes on the device that is named: nothing it makes lies on the CPU; results are the CPU's."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import aoq
from aoq.pipeline.build import Build
from aoq.pipeline.engine import Engine
from aoq.pipeline.search import pool, scan
from aoq.pipeline.search.device import choose_tiling
from aoq.pipeline.settings import set_engine
from aoq.pipeline.stages.plan import MAKERS
from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import run
from tests.search.problems import SMALL, check_pinned
from tests.training.simulated import DEVICE, Simulated

THERE = Engine(device=str(DEVICE), threads=1)


def test_mined_lists_are_those_that_are_pinned(monkeypatch):
    """In small tiles, and with little room."""
    room = choose_tiling(torch.device("cpu"), 10**9, 1)._replace(rows=30, columns=50)
    monkeypatch.setattr(scan, "choose_tiling", lambda *given: room)
    with Simulated():
        check_pinned(SMALL[::45], device=str(DEVICE))
        monkeypatch.setattr(pool, "width_for", lambda h, candidates: h + 5)
        check_pinned(SMALL[1::90], device=str(DEVICE))


def made_there(chain, stage, folder):
    """Make a stage once more, on the device."""
    build = Build(folder / stage)
    build.directory.mkdir()
    with build.collecting(), Simulated():
        MAKERS[stage](chain, build, THERE)
    return build.directory, build.notes


def hashes(folder):
    return [about["sha256"] for about in read_table(folder).manifest["directions"].values()]


STUDENT = 'epochs = 1, batch_size = 64, loss.name = "adapoffquin"'


def test_every_stage_makes_what_it_makes_on_the_cpu(make, taught_by, tmp_path):
    """The stages of a model that embeds, and the evaluation of one that attends."""
    chain = make("own", "mining", "second_round", second_round=STUDENT)
    scan = {"model": "scan", "teacher": taught_by("own"), "loss": "online"}
    attending = make("scan", "dataset", "second_round", "evaluation", **scan)
    vectors, _ = made_there(chain, "embeddings", tmp_path)
    for side in ("images", "captions"):
        found, expected = (np.load(folder / f"{side}.npy") for folder in (vectors, chain["embeddings"].path))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    table, _ = made_there(chain, "hard_negatives", tmp_path)
    assert hashes(table / "table") == hashes(chain["hard_negatives"].path / "table")
    trained, notes = made_there(chain, "second_round", tmp_path)
    assert notes["device"] == str(DEVICE)
    weights, expected = (load_file(each / "model.safetensors") for each in (trained, chain["second_round"].path))
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-4)
    _, notes = made_there(attending, "evaluation", tmp_path)
    assert notes["metrics"] == attending["evaluation"].manifest()["metrics"]


@pytest.fixture
def sides():
    rng = np.random.default_rng(0)
    return [rng.normal(size=(rows, 8)).astype(np.float32) for rows in (40, 120)]


def test_vectors_in_memory_are_searched_there(sides, monkeypatch):
    expected, names = aoq.hard_negatives(*sides, np.repeat(np.arange(40), 3), h=10), []
    monkeypatch.setattr(scan, "find_device", lambda name: names.append(name) or DEVICE)
    with Simulated():
        table = aoq.hard_negatives(*sides, np.repeat(np.arange(40), 3), h=10)
    assert set(names) == {"auto"}
    for one, other in zip((table.i2t, table.t2i), (expected.i2t, expected.t2i), strict=True):
        assert one.negative_ids.tobytes() == other.negative_ids.tobytes()
        assert one.scores.tobytes() == other.scores.tobytes()


def test_aoq_mine_searches_there(sides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, side in zip(("images", "captions"), sides, strict=True):
        np.save(f"{name}.npy", side)

    def mine(folder, device, code=0):
        set_engine(device=device)
        depths = ("--h-captions", 20, "--h-images", 10)
        return run("mine", "images.npy", "captions.npy", folder, "--per-image", 3, *depths, code=code)

    try:
        mine("here", "cpu")
        with Simulated():
            mine("there", str(DEVICE))
        refused = mine("elsewhere", "nowhere", code=1)
    finally:
        set_engine(device="auto")
    assert hashes("there") == hashes("here")
    assert "device is 'nowhere'; use auto, cpu, cuda, or cuda:0" in refused.output
    assert not (tmp_path / "elsewhere").exists()
