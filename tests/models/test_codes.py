"""Codes are chosen by rows, in any order and several times, as tensors are; and so are their gradients."""

from __future__ import annotations

import pytest
import torch

from aoq.models.base import Code

ROWS = [slice(1, 4), torch.tensor([4, 0, 0, 2, 4]), torch.tensor([True, False, True, True, False])]


@pytest.mark.parametrize("rows", ROWS, ids=["slice", "numbers", "mask"])
def test_rows_are_those_of_each_part(rows):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(5, 3, 4, generator=generator, requires_grad=True)
    mask, pooled = torch.rand(5, 3, generator=generator) < 0.5, torch.randn(5, 2, generator=generator)
    chosen = Code(vectors, mask, pooled)[rows]
    assert chosen.context is None
    for part, expected in ((chosen.vectors, vectors[rows]), (chosen.mask, mask[rows]), (chosen.pooled, pooled[rows])):
        assert torch.equal(part, expected)
    weights = torch.randn(chosen.vectors.shape, generator=generator)
    gradients = [torch.autograd.grad((of * weights).sum(), vectors)[0] for of in (chosen.vectors, vectors[rows])]
    assert torch.equal(*gradients)
