"""Products of 16-bit integers against numpy's, for whole panels and parts of them."""

from __future__ import annotations

import numpy as np
import pytest
from numba.core import config

from aoq.pipeline.search.products.int16 import COLUMNS, ROWS, int16_works, multiply, pack

needs_the_instruction = pytest.mark.skipif(not int16_works(), reason="no AVX2 here")


@needs_the_instruction
@pytest.mark.parametrize(
    ("rows", "columns", "dimensions"), [(1, 1, 1), (6, 16, 2), (7, 17, 3), (130, 50, 64), (245, 33, 301)]
)
def test_products_are_those_of_numpy(rows, columns, dimensions):
    rng = np.random.default_rng(0)
    most = int(np.sqrt((2**31 - 1) / dimensions).clip(max=32767))
    one, other = (rng.integers(-most, most + 1, (count, dimensions)).astype(np.int16) for count in (rows, columns))
    one[0], other[0] = most, -most
    row_panels, column_panels = -(-rows // ROWS), -(-columns // COLUMNS)
    packed = np.empty((column_panels, -(-dimensions // 2), COLUMNS, 2), np.int16)
    pack(0, column_panels, other, packed)
    scales = [rng.random(count).astype(np.float32) for count in (row_panels * ROWS, column_panels * COLUMNS)]
    products = np.full((row_panels * ROWS, column_panels * COLUMNS), np.nan, np.float32)
    multiply(0, row_panels, one, packed, *scales, products)
    sums = (one.astype(np.int64) @ other.T.astype(np.int64)).astype(np.float32)
    expected = sums * scales[0][:rows, None] * scales[1][:columns]
    np.testing.assert_array_equal(products[:rows, :columns], expected)


@pytest.mark.parametrize(("name", "value"), [("CPU_NAME", "generic"), ("CPU_FEATURES", "-avx2"), ("DISABLE_JIT", 1)])
def test_it_is_left_alone_where_numba_does_not_compile_for_this_processor(monkeypatch, name, value):
    monkeypatch.setattr(config, name, value)
    assert not int16_works()
