"""A backend that is one more line in the registry is known everywhere: TOML, mining, estimates, help and errors."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.mining.estimate import estimate
from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.backends import BACKENDS, choose_backend
from aoq.pipeline.search.exact import lists_table, rescored
from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.units import Backend, Unit, unit_name
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table

EXPERIMENT = """
model.name = "vsepp"
dataset.demo.images = 40
first_round = {epochs = 1, loss.name = "online"}
second_round = {epochs = 1, loss.name = "adapoffquin"}

[mining]
search = "everything"
h_captions = 7
h_images = 4
"""


def search_everything(direction, problem, store):
    """Every candidate is proposed, and so scored exactly."""
    side = problem[direction]
    found = rescored(side, np.tile(np.arange(len(side.candidates)), (len(side.anchors), 1)))
    return [lists_table(side, replace(found, bound=np.full_like(found.bound, -np.inf)), 0)]


def everything_steps(problem):
    names = {d: unit_name(d, 0, problem.size(d).anchors) for d in problem.directions}
    return [[Unit((name,), partial(search_everything, direction)) for direction, name in names.items()]]


@pytest.fixture
def toy(monkeypatch):
    backend = Backend("everything", "exact, every pair is scored", everything_steps)
    monkeypatch.setitem(BACKENDS, "everything", backend)
    return backend


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    images, captions = (rng.normal(size=(n, 5)).astype(np.float32) for n in (20, 40))
    return Problem(images, captions, np.repeat(np.arange(20, dtype=np.int32), 2), 7, 4)


def test_an_experiment_names_it_and_mines_with_it(toy, problem, tmp_path):
    (tmp_path / "trial.toml").write_text(EXPERIMENT)
    mining = load_experiment(str(tmp_path / "trial.toml")).mining
    assert (mining.search, mining.is_approximate) == ("everything", False)
    hashes = set()
    for search in (mining.search, "onepass"):
        problem = replace(problem, h_captions=mining.h_captions, h_images=mining.h_images)
        mine(problem, search=search, provenance={"dataset": "d"}, work=tmp_path / "w", output=tmp_path / search)
        assert audit(tmp_path / search) == []
        about = read_table(tmp_path / search).manifest["directions"]
        assert all(about[d]["search"] == search and about[d]["certified_share"] == 1 for d in DIRECTIONS)
        hashes.add(tuple(about[direction]["sha256"] for direction in DIRECTIONS))
    assert len(hashes) == 1


def test_without_its_line_the_experiment_is_refused(tmp_path):
    (tmp_path / "trial.toml").write_text(EXPERIMENT)
    message = r"mining.search: there is no search 'everything'; known are auto, onepass, faiss-flat.* and "
    with pytest.raises(ValueError, match=message):
        load_experiment(str(tmp_path / "trial.toml"))


def test_an_approximate_one_is_known_as_such(toy, tmp_path, monkeypatch):
    (tmp_path / "trial.toml").write_text(EXPERIMENT)
    monkeypatch.setitem(BACKENDS, "everything", replace(toy, guarantee=lambda store, direction: {}))
    assert load_experiment(str(tmp_path / "trial.toml")).mining.is_approximate


def test_help_errors_and_estimates_know_it(toy, problem):
    said = json.loads(CliRunner().invoke(main, ["list", "searches", "--json"]).stdout)["searches"][1:]
    assert said == [{"search": name, "about": backend.about} for name, backend in BACKENDS.items()]
    with pytest.raises(ValueError, match=r"known are auto, onepass, faiss-flat, .* and everything"):
        choose_backend("best")
    found = estimate(problem, "everything")
    assert (found.search, found.operations, found.seconds) == ("everything", None, {})
    assert found.work_bytes == 20 * (8 * 7 + 12) + 40 * (8 * 4 + 12)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_describes_itself(problem, name):
    backend = BACKENDS[name]
    assert backend.name == name
    assert backend.about.startswith("exact, " if backend.is_exact else "approximate, ")
    if backend.costs is not None:
        assert len(backend.costs(problem)) == len(backend.plan(problem))
