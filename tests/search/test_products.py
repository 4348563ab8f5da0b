"""Near products are within their error of the exact ones, whatever the vectors, and no pair that counts is lost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.products import choice
from aoq.pipeline.search.products.choice import near_product
from aoq.pipeline.search.products.int8 import int8_works
from aoq.pipeline.search.products.int16 import int16_works
from aoq.pipeline.search.tiles import Keeper, TileKeeper

PRECISIONS = ["float32", "bfloat16", *["int16"] * int16_works(), *["int8"] * int8_works()]


def vectors(seed, size, scale, count=40):
    """Of many sizes, with zeros, one vector that is all zero and two that nearly are."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(count, size)) * np.exp(rng.normal(size=(count, 1))) * (rng.random((count, size)) < 0.8)
    found[3] = 0
    found[4:6] *= 1e-22
    return (scale * found).astype(np.float32)


@pytest.mark.parametrize("precision", [precision for precision in PRECISIONS if precision != "int8"])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("size", [1, 7, 300])
def test_near_products_are_within_the_error(size, scale, precision):
    rng = np.random.default_rng(0)
    one, other = (scale * rng.normal(size=(50, size)).astype(np.float32) for _ in range(2))
    # Just above the middle of two bfloat16 numbers: the most that rounding can take away.
    one[0], other[0] = scale * np.float32(1.00391), scale * np.float32(1.00391)
    product = near_product(Problem(one, other, np.arange(50, dtype=np.int32), 3, 3), precision)
    found = product(product.prepare(one), product.prepare(other))
    exact = one.astype(np.float64) @ other.T.astype(np.float64)
    worst = np.abs(found - exact).max()
    assert worst <= product.error
    assert product.precision == precision
    assert product.error < {"float32": 1e-4, "bfloat16": 0.02, "int16": 1e-3}[precision] * np.abs(exact).max() * 10


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 7, 64, 300]),
    scale=st.sampled_from([1e-10, 1e-3, 1.0, 1e4]),
    precision=st.sampled_from(PRECISIONS),
)
def test_a_scan_hands_over_all_that_counts_and_nothing_else(seed, size, scale, precision):
    """Limits at an exact score of each anchor's own: the worst place for a bound that is a hair too low."""
    one, other = vectors(seed, size, scale), vectors(seed + 1, size, scale, count=250)
    other[:7] = one[:7]
    product = near_product(Problem(one, other, np.full(250, -1, np.int32), 3, 3), precision)
    exact = one.astype(np.float64) @ other.T.astype(np.float64)
    rng = np.random.default_rng(seed)
    image_limits = exact[np.arange(40), rng.integers(0, 250, 40)].astype(np.float32)
    caption_limits = exact[rng.integers(0, 40, 250), np.arange(250)].astype(np.float32)
    keepers = Keeper(image_limits, 1000), Keeper(caption_limits, 1000)
    TileKeeper(*keepers, 250).take(product.scan(product.prepare(one), product.prepare(other)), 0, 250)
    for keeper, limits, scores in ((keepers[0], image_limits, exact), (keepers[1], caption_limits, exact.T)):
        offsets, candidates, near = keeper.kept()
        kept = np.zeros(scores.shape, bool)
        anchors = np.repeat(np.arange(len(limits)), np.diff(offsets))
        kept[anchors, candidates] = True
        assert (np.abs(near - scores[anchors, candidates]) <= product.error).all()
        assert (near >= limits[anchors]).all()
        assert (scores <= limits[:, None].astype(np.float64) + product.error)[~kept].all()


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
    monkeypatch.setattr(choice, "int8_works", lambda: works)
    assert choice.fastest_precision() == precision
