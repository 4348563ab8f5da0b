"""SigLIP's loss against loops in float64: values and gradients."""

from __future__ import annotations

import pytest
import torch

from aoq.pipeline.losses.sigmoid import sigmoid_loss
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities, positive_pairs

SIZE = 6
ROWS = torch.tensor([0, 1, 1, 2, 3, 4])


def leaves(seed):
    generator = torch.Generator().manual_seed(seed)
    shapes = (SIZE, SIZE), (2, SIZE)
    found = [torch.rand(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    return [*found, *(torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.1, -5.0))]


def definition(matrix, lists, temperature, bias, probability):
    def cost(s, z):
        return torch.log(1 + torch.exp(-z * (s / temperature + bias)))

    total = 0
    for a in range(SIZE):
        for b in range(SIZE):
            if a == b:
                total = total + cost(matrix[a, a], 1)
            elif ROWS[a] != ROWS[b]:
                total = total + cost(matrix[a, b], -1)
        if lists is not None:
            for k in (0, 1):
                total = total + (1 - probability[k, a]) * cost(lists[k, a], -1)
    return total


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("drawn", [False, True], ids=["batch", "table"])
@pytest.mark.parametrize("soft", [False, True], ids=["sure", "soft"])
def test_equals_its_definition(seed, drawn, soft):
    slow, fast = leaves(seed), leaves(seed)
    probability = torch.rand(2, SIZE, dtype=torch.float64) if soft else torch.zeros(2, SIZE)
    expected = definition(slow[0], slow[1] if drawn else None, *slow[2:], probability)
    expected.backward()
    offline = OfflineSimilarities(*fast[1], match_probability=probability if soft else None) if drawn else None
    pairs = Similarities(fast[0], positive_pairs(ROWS, mask_positives=True), offline)
    value = sigmoid_loss(pairs, temperature=fast[2], bias=fast[3])
    value.total.backward()
    torch.testing.assert_close(value.total, expected)
    for ours, theirs in zip(fast, slow, strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad, theirs.grad)
    assert fast[0].grad[1, 2] == 0
    assert value.figures["online"] + value.figures.get("offline", 0) == pytest.approx(value.total.item())
