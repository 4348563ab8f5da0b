"""The arithmetic is the one that took least time, and changes no list."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.search.problem import DIRECTIONS, Problem
from aoq.pipeline.search.products import choice, measuring
from aoq.pipeline.search.products.choice import able_precisions
from aoq.pipeline.search.products.measuring import choose_product, measure
from aoq.pipeline.search.runners import search_problem


def draw(kind, rng, count, size=24):
    """Vectors that are hard on one arithmetic or another."""
    found = rng.normal(size=(count, size))
    if kind == "duplicates":
        found = found[rng.integers(0, 5, count)]
    if kind == "zeros":
        found[rng.random(count) < 0.3] = 0
        found[:, rng.random(size) < 0.5] = 0
    if kind == "denormal entries":
        found[:, ::2] *= 1e-41
    if kind == "small norms":
        found *= 1e-11
    if kind == "huge norms":
        found *= 10 ** rng.uniform(-5, 11, (count, 1))
    if kind == "heavy tails":
        found = rng.standard_cauchy(size=(count, size)).clip(-1e6, 1e6)
    if kind == "positive":
        found = np.abs(found) * (rng.random(size=(count, size)) < 0.1)  # many products are 0, exactly
    return found.astype(np.float32)


KINDS = ["duplicates", "zeros", "denormal entries", "small norms", "huge norms", "heavy tails", "positive"]


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    images, captions = (rng.normal(size=(count, 12)).astype(np.float32) for count in (300, 600))
    return Problem(images, captions, np.repeat(np.arange(300), 2), 20, 10)


@pytest.mark.parametrize("kind", KINDS)
def test_no_list_depends_on_the_arithmetic(monkeypatch, kind):
    rng = np.random.default_rng(0)
    problem = Problem(draw(kind, rng, 90), draw(kind, rng, 200), rng.integers(-1, 90, 200), 12, 7)
    exact = search_problem(problem, search="faiss-flat")
    for precision in able_precisions(24):
        monkeypatch.setattr(choice, "fastest_precision", lambda precision=precision: precision)
        found = search_problem(problem, search="onepass")
        for direction in DIRECTIONS:
            for column in ("negative_ids", "scores", "positive_score"):
                ours, theirs = (getattr(lists.lists[direction], column) for lists in (found, exact))
                assert ours.tobytes() == theirs.tobytes()


def products_of(problem, precisions):
    return [choice.near_product(problem, precision) for precision in precisions]


def test_every_precision_is_measured(problem, monkeypatch):
    monkeypatch.setattr(measuring, "BEHIND", np.inf)
    seconds = measure(problem, lambda direction: 0.1, products_of(problem, able_precisions(12)))
    assert len(seconds) == len(able_precisions(12))
    assert all(0 < found < 60 for found in seconds)


def test_one_that_is_far_behind_is_left_out_after_a_first_turn(problem, monkeypatch):
    products, sizes = [choice.FloatProduct(f"{n}", 0.0) for n in range(3)], []

    def seconds(product, images, captions, limits):
        sizes.append((int(product.precision), len(images), len(captions)))
        return [1.0, 1.5, 1.51][int(product.precision)]

    monkeypatch.setattr(measuring, "_seconds", seconds)
    monkeypatch.setattr(measuring, "IMAGES", 200)
    monkeypatch.setattr(measuring, "CAPTIONS", 400)
    assert measure(problem, lambda direction: 0.1, products) == [1.0, 1.5, np.inf]
    quarters, wholes = [(n, 100, 200) for n in range(3)], [(n, 200, 400) for n in range(2)]
    assert sizes == quarters + wholes


@pytest.mark.parametrize("fastest", able_precisions(12))
def test_the_fastest_is_taken_and_what_was_measured_is_said(problem, monkeypatch, caplog, fastest):
    caplog.set_level("INFO")
    monkeypatch.setattr(measuring, "WORTH", 0)
    monkeypatch.setattr(measuring, "_seconds", lambda product, *_: 0.002 if product.precision == fastest else 0.003)
    assert choose_product(problem, lambda direction: 0.1).precision == fastest
    (said,) = caplog.messages
    assert said.startswith(f"multiplying in {fastest}; a sample of a tile took {fastest} 2 ms")
    assert said.count("3 ms") == len(able_precisions(12)) - 1


def test_a_direction_that_is_left_out_is_not_asked_for(problem):
    one_way = Problem(problem.images, problem.captions, problem.positives, 20, 0)
    measure(one_way, {"i2t": 0.1}.__getitem__, products_of(problem, ["float32"]))


def test_a_small_job_is_not_measured(problem, monkeypatch):
    monkeypatch.setattr(measuring, "measure", None)
    assert choose_product(problem, lambda direction: 0.1).precision == choice.fastest_precision()
