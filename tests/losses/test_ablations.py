"""Each variant against the paper's sentence about it written as loops: values, and gradients of every similarity."""

from __future__ import annotations

import pytest
import torch

from aoq.pipeline.losses import LOSSES
from aoq.pipeline.losses.similarities import OfflineSimilarities, Similarities, positive_pairs

SIZE = 7
M1, M2, ALPHA, BETA = 0.2, 0.05, 0.3, 1.5
ROWS = torch.tensor([0, 1, 1, 2, 3, 4, 5])
ADAPTIVE = {"alpha": ALPHA, "beta": BETA}


def leaves(seed):
    """The matrix and the four lists, as numbers one can differentiate by."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.rand(SIZE, SIZE, generator=generator, dtype=torch.float64)
    lists = torch.rand(4, SIZE, generator=generator, dtype=torch.float64)
    return matrix.requires_grad_(), lists.requires_grad_()


def others(a):
    return [b for b in range(SIZE) if ROWS[b] != ROWS[a]]


def hardest(matrix, a):
    """The columns and rows of the online negatives of pair a."""
    caption = max(others(a), key=lambda b: matrix[a, b].item())
    image = max(others(a), key=lambda b: matrix[b, a].item())
    return caption, image


def clamp(x):
    return torch.clamp(x, min=0)


def only_offline(matrix, lists):
    return sum(clamp(M2 - matrix[a, a] + lists[k, a]) for a in range(SIZE) for k in range(4))


def online_quin(matrix, lists):
    total = 0
    for a in range(SIZE):
        caption, image = hardest(matrix, a)
        total = total + clamp(M1 - matrix[a, a] + matrix[a, caption]) + clamp(M1 - matrix[a, a] + matrix[image, a])
        total = total + sum(clamp(M2 - matrix[a, a] + lists[k, a]) for k in (0, 1))
        if ROWS[image] != ROWS[caption]:
            total = total + clamp(M2 - matrix[a, a] + matrix[image, caption])
            total = total + clamp(M2 - matrix[a, a] + matrix[caption, image])
    return total


def adap_pos_quin(matrix, lists):
    total = 0
    for a in range(SIZE):
        caption, image = hardest(matrix, a)
        for online in (matrix[a, caption], matrix[image, a]):
            weight = BETA - (matrix[a, a] - online) / ALPHA
            total = total + weight * clamp(M1 - matrix[a, a] + online)
    return total + only_offline(matrix, lists)


def adap_off_tri(matrix, lists):
    total = 0
    for a in range(SIZE):
        caption, image = hardest(matrix, a)
        for online, offline in ((matrix[a, caption], lists[0, a]), (matrix[image, a], lists[1, a])):
            weight = BETA - (offline - online) / ALPHA
            total = total + weight * clamp(M1 - matrix[a, a] + online) + clamp(M2 - matrix[a, a] + offline)
    return total


def squared_off_quin(matrix, lists):
    total = 0
    for a in range(SIZE):
        caption, image = hardest(matrix, a)
        total = total + clamp(M1 - matrix[a, a] + matrix[a, caption]) ** 2
        total = total + clamp(M1 - matrix[a, a] + matrix[image, a]) ** 2
        total = total + sum(clamp(M2 - matrix[a, a] + lists[k, a]) ** 2 for k in range(4))
    return total


VARIANTS = {
    "adapofftri": (adap_off_tri, ADAPTIVE),
    "onlyoffline": (only_offline, {}),
    "onlinequin": (online_quin, {}),
    "adapposquin": (adap_pos_quin, ADAPTIVE),
    "squaredoffquin": (squared_off_quin, {}),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", VARIANTS)
def test_equals_its_definition(name, seed):
    definition, numbers = VARIANTS[name]
    slow, fast = leaves(seed), leaves(seed)
    expected = definition(*slow)
    expected.backward()
    offline = OfflineSimilarities(*fast[1][: 2 if LOSSES[name].offline == "anchors" else 4])
    pairs = Similarities(fast[0], positive_pairs(ROWS, mask_positives=True), offline)
    loss = LOSSES[name].function(pairs, margin_online=M1, margin_offline=M2, **numbers).total
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_online_negatives_that_correspond_are_no_pair_to_push_apart():
    """Image 1 and caption 1 are the hardest negatives of pair 0, and a true pair."""
    matrix = torch.tensor([[0.5, 0.6, 0.1], [0.6, 0.9, 0.1], [0.1, 0.1, 0.9]])
    four = OfflineSimilarities(*torch.full((2, 3), -1.0))
    pairs = Similarities(matrix, torch.eye(3, dtype=torch.bool), four)
    figures = LOSSES["onlinequin"].function(pairs, margin_online=0.2, margin_offline=0.0).figures
    assert figures["derived"] == 0
    assert figures["online"] > 0
