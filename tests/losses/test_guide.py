"""A guide takes pairs of a batch for matches, compared with loops."""

from __future__ import annotations

import pytest
import torch

from aoq.pipeline.losses.info_nce import info_nce
from aoq.pipeline.losses.similarities import Similarities, guided_matches, positive_pairs


@pytest.mark.parametrize("margin", [0.0, 0.2, -0.2])
def test_a_negative_that_the_guide_scores_above_a_positive_is_none(margin):
    scores = torch.rand(8, 8, generator=torch.Generator().manual_seed(0)) + 0.4 * torch.eye(8)
    found = guided_matches(scores, margin=margin)
    for i in range(8):
        for j in range(8):
            above_own = scores[i, j] > scores[i, i] - margin, scores[i, j] > scores[j, j] - margin
            assert found[i, j] == (i == j or any(above_own))
    assert 8 < found.sum() < 64


def test_what_the_guide_leaves_out_is_no_column():
    matrix = torch.rand(6, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    guided = guided_matches(torch.rand(6, 6, generator=torch.Generator().manual_seed(2)) + 0.4 * torch.eye(6))
    is_positive = positive_pairs(torch.arange(6), mask_positives=True) | guided
    info_nce(Similarities(matrix, is_positive), temperature=0.1).total.backward()
    aside = guided & ~torch.eye(6).bool()
    assert aside.any()
    assert (matrix.grad[aside] == 0).all()
    assert (matrix.grad[~guided] > 0).all()
