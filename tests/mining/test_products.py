"""Near products are within their error of the exact ones, whatever the vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pipeline.mining import products
from pipeline.mining.problem import Problem
from pipeline.mining.products import near_product


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
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
    assert product.error < {"float32": 1e-4, "bfloat16": 0.02}[precision] * np.abs(exact).max() * 10


def test_bfloat16_is_taken_where_the_processor_has_units_for_it(monkeypatch):
    for able, precision in (({"amx_bf16": True}, "bfloat16"), ({"avx512_bf16": True}, "bfloat16"), ({}, "float32")):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=able: able, raising=False)
        assert products.fastest_precision() == precision
