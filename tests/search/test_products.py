"""Near products reach the floors of exact scores, whatever the vectors, and no pair that counts is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.search.problem import Problem, blocks
from aoq.pipeline.search.products import choice
from aoq.pipeline.search.products.choice import near_product
from aoq.pipeline.search.products.int8 import int8_works
from aoq.pipeline.search.products.int16 import int16_works
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.search.tiles import Keeper, TileKeeper

PRECISIONS = ["float32", "bfloat16", *["int16"] * int16_works(), *["int8"] * int8_works()]


def vectors(seed, size, scale, count=40):
    """Vectors of many sizes, with zeros, an all-zero vector and two that nearly are."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(count, size)) * np.exp(rng.normal(size=(count, 1))) * (rng.random((count, size)) < 0.8)
    found[3] = 0
    found[4:6] *= 1e-22
    return (scale * found).astype(np.float32)


@pytest.mark.parametrize("precision", [precision for precision in PRECISIONS if precision != "int8"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_near_products_reach_the_floors_of_their_scores(size, scale, precision):
    rng = np.random.default_rng(0)
    one, other = (scale * rng.normal(size=(50, size)).astype(np.float32) for _ in range(2))
    # Just above the middle of two bfloat16 numbers: the most that rounding can take away.
    one[0], other[0] = scale * np.float32(1.00391), scale * np.float32(1.00391)
    product = near_product(Problem(one, other, np.arange(50, dtype=np.int32), 3, 3), precision)
    found = product(product.prepare(one), product.prepare(other))
    exact = all_scores(one, other)
    floors = product.floors(exact.ravel()).reshape(exact.shape)
    assert (found >= floors).all()
    assert product.precision == precision
    slack = {"float32": 1e-4, "bfloat16": 0.02, "int16": 1e-3}[precision]
    assert (exact - floors).max() < slack * np.abs(exact).max() * 10


@pytest.mark.parametrize("precision", [precision for precision in PRECISIONS if precision != "int8"])
def test_nothing_reaches_the_floor_of_an_infinite_limit(precision):
    one = vectors(0, 7, 1.0)
    product = near_product(Problem(one, one, np.arange(40, dtype=np.int32), 3, 3), precision)
    assert product.floors(np.float32([np.inf, 1, np.inf]))[[0, 2]].tolist() == [np.inf, np.inf]


def all_scores(one, other):
    """Score all pairs exactly."""
    offsets, ids = np.arange(len(one) + 1) * len(other), np.tile(np.arange(len(other), dtype=np.int32), len(one))
    return exact_scores(one, other, offsets, ids).reshape(len(one), len(other))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 7, 64, 300]),
    scale=st.sampled_from([1e-10, 1e-3, 1.0, 1e4]),
    precision=st.sampled_from(PRECISIONS),
    tile=st.sampled_from([600, 250, 100]),
)
def test_a_tile_hands_over_all_that_counts_and_nothing_else(seed, size, scale, precision, tile):
    """Limits at an exact score of each anchor's own: the worst place for a floor that is a hair too high."""
    one, other = vectors(seed, size, scale), vectors(seed + 1, size, scale, count=600)
    other[:7] = one[:7]
    product = near_product(Problem(one, other, np.full(600, -1, np.int32), 3, 3), precision)
    exact = all_scores(one, other)
    rng = np.random.default_rng(seed)
    image_limits = exact[np.arange(40), rng.integers(0, 600, 40)]
    caption_limits = exact[rng.integers(0, 40, 600), np.arange(600)]
    image_limits[::9], caption_limits[::7] = np.inf, np.inf  # what a direction that is left out has
    check_tiles(product, one, other, image_limits, caption_limits, tile)


def check_tiles(product, one, other, image_limits, caption_limits, tile):
    """Check that either side keeps exactly the pairs whose exact score reaches its limit."""
    exact = all_scores(one, other)
    keepers = Keeper(image_limits, 1000), Keeper(caption_limits, 1000)
    keeper = TileKeeper(product, one, *keepers, tile)
    for first, last in blocks(len(other), tile):
        keeper.take(other[first:last], first)
    for keeper, limits, scores in ((keepers[0], image_limits, exact), (keepers[1], caption_limits, exact.T)):
        offsets, candidates, found = keeper.kept()
        kept = np.full(scores.shape, np.nan, np.float32)
        kept[np.repeat(np.arange(len(limits)), np.diff(offsets)), candidates] = found
        np.testing.assert_array_equal(kept, np.where(scores >= limits[:, None], scores, np.nan))


@pytest.mark.parametrize("size", [1, 7, 300])
@pytest.mark.parametrize("scale", [1e-10, 1.0, 1e4])
def test_tiles_of_bfloat16_are_looked_through_as_bits_where_limits_are_high(size, scale):
    rng = np.random.default_rng(0)
    one, other = (scale * (rng.normal(size=(n, size)) + 0.5).astype(np.float32) for n in (40, 600))
    exact = all_scores(one, other)
    rank = np.maximum(exact, 0.1 * exact.max())  # each limit is a score or above 0
    limits = rank[np.arange(40), rng.integers(0, 600, 40)], rank[rng.integers(0, 40, 600), np.arange(600)]
    limits[0][::9], limits[1][::7] = np.inf, np.inf
    product = near_product(Problem(one, other, np.full(600, -1, np.int32), 3, 3), "bfloat16")
    _, (tile, _) = product.scan(product.prepare(one), product.prepare(other), limits)
    assert tile.dtype == np.int16
    check_tiles(product, one, other, *limits, 250)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_score_that_float64_leaves_open_is_kept_by_its_exact_value(precision):
    """1 + 2**-24 lies halfway between two float32 numbers, and 2**-60 decides which of them the score is."""
    one = np.float32([[1, 2**-24, 2**-60], [1, 2**-24, -(2**-60)]])
    other = np.ones((3, 3), np.float32)
    product = near_product(Problem(one, other, np.full(3, -1, np.int32), 1, 1), precision)
    above = np.float32(1 + 2**-23)
    keepers = Keeper(np.full(2, above), 10), Keeper(np.float32([1, above, np.inf]), 10)
    TileKeeper(product, one, *keepers, 3).take(other, 0)
    offsets, candidates, scores = keepers[0].kept()
    assert (offsets.tolist(), candidates.tolist(), set(scores.tolist())) == ([0, 3, 3], [0, 1, 2], {float(above)})
    offsets, candidates, scores = keepers[1].kept()
    assert (offsets.tolist(), candidates.tolist(), scores.tolist()) == ([0, 2, 3, 3], [0, 1, 0], [above, 1, above])


def test_vectors_of_8_bits_are_as_near_as_they_say():
    given_vectors = vectors(0, 300, 1.0)
    rounded = near_product(Problem(given_vectors, given_vectors, np.arange(40, dtype=np.int32), 3, 3), "int8").prepare(
        given_vectors
    )
    whole = rounded.integers.numpy().astype(np.float64)
    assert np.abs(whole).max() == 127
    left = np.linalg.norm(given_vectors - whole * rounded.scales[:, None].astype(np.float64), axis=1)
    norms = np.linalg.norm(given_vectors.astype(np.float64), axis=1)
    assert (left <= rounded.left).all()
    assert (rounded.left[6:] <= 1.001 * left[6:] + 1e-6 * norms[6:]).all()
    assert rounded.longest >= (norms + left).max()


@pytest.mark.parametrize("scale", [1e-38, 1.0, 1e12])
def test_vectors_are_rounded_to_bfloat16_as_torch_rounds(scale):
    one = vectors(0, 300, scale)
    one[0, :4] = np.float32([1.00390625, 1.01171875, -1.00390625, -0.0])  # halfway, to either side, and a sign
    one.setflags(write=False)
    unit = vectors(0, 300, 1.0)
    product = near_product(Problem(unit, unit, np.arange(40, dtype=np.int32), 3, 3), "bfloat16")
    torch.testing.assert_close(product.prepare(one), torch.tensor(one).bfloat16(), rtol=0, atol=0)


def test_what_bfloat16_leaves_is_what_torch_leaves():
    given_vectors = vectors(0, 300, 1.0)
    left = given_vectors - torch.tensor(given_vectors).bfloat16().float().numpy()
    found = choice._norms(given_vectors)
    for largest, expected in zip(found, (given_vectors, left), strict=True):
        exact = np.linalg.norm(expected.astype(np.float64), axis=1).max()
        assert exact <= largest <= exact * (1 + 1e-4)


def test_sums_that_could_overflow_are_not_made_of_integers():
    assert not int8_works(2**31 // 127**2 + 1)


@pytest.mark.parametrize(
    ("able", "works", "precision"),
    [
        ({"amx_bf16": True}, True, "bfloat16"),
        ({"avx512_bf16": True, "avx512_vnni": True}, True, "bfloat16"),
        ({"avx512_vnni": True}, True, "int8"),
        ({"avx_vnni": True}, True, "int8"),
        ({"avx512_vnni": True, "avx2": True}, False, "int16"),
        ({"avx2": True}, True, "int16"),
        ({"avx512_vnni": True}, False, "float32"),
        ({}, True, "float32"),
    ],
)
def test_the_precision_is_one_that_the_processor_has_units_for(monkeypatch, able, works, precision):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(choice, "int8_works", lambda dimensions: works)
    assert choice.fastest_precision() == precision
