"""BFAN's choice of relevant fragments, and its guard where no fragment stands out."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from aoq.models.base import Code
from aoq.models.bfan import BFAN, focus

FOCALS = ["equal", "prob"]


def model_with(focal):
    return BFAN(feature_size=1, vocabulary_size=1, embedding_size=1, word_size=1, focal=focal)


def defined_focus(weights, focal):
    """A fragment is relevant if sum_k confidence_k (a_j - a_k) > 0; confidence is 1, or the root of k's own weight."""
    kept = []
    for a_j in weights:
        score = sum((a_j - a_k) * (1.0 if focal == "equal" else a_k.detach() ** 0.5) for a_k in weights)
        kept.append(a_j * float(score > 0))
    return torch.stack(kept) / sum(kept) if any(kept) else weights


@pytest.mark.parametrize("focal", FOCALS)
@pytest.mark.parametrize("fragments", [2, 3, 7, 36])
def test_focus_is_the_sum_over_all_pairs_of_fragments(focal, fragments):
    generator = torch.Generator().manual_seed(fragments)
    weights = torch.randn(20, fragments, generator=generator).double().mul(3).softmax(1).requires_grad_()
    expected = torch.stack([defined_focus(row, focal) for row in weights])
    actual = focus(weights, None, 1, focal)
    assert_close(actual, expected)
    assert_close(focus(weights.T, None, 0, focal), expected.T)
    wave = torch.arange(expected.numel()).cos().view_as(expected)
    gradients = [torch.autograd.grad((result * wave).sum(), weights)[0] for result in (actual, expected)]
    assert_close(*gradients)
    assert 0 < (expected == 0).sum() < expected.numel()


@pytest.mark.parametrize("focal", FOCALS)
def test_focus_sees_real_fragments_only(focal):
    """Padding, whose weight is 0, does not lower the mean."""
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.36, 0.34, 0.3]])
    padded = torch.tensor([[0.5, 0.0, 0.3, 0.2, 0.0], [0.36, 0.0, 0.34, 0.3, 0.0]])
    mask = torch.tensor([[True, False, True, True, False]])
    alone = focus(weights, None, 1, focal)
    assert_close(focus(padded, mask, 1, focal)[:, [0, 2, 3]], alone)
    assert alone.count_nonzero(1).tolist() == [1, 2]


@pytest.mark.parametrize("focal", FOCALS)
@pytest.mark.parametrize("fragments", [1, 2, 3, 36])
def test_where_all_weights_are_equal_all_are_kept(focal, fragments):
    """The official code divides 0 by 0 here."""
    weights = torch.zeros(4, fragments).softmax(1).requires_grad_()
    kept = focus(weights, None, 1, focal)
    assert_close(kept, torch.full((4, fragments), 1 / fragments))
    kept.square().sum().backward()
    assert weights.grad.isfinite().all()
    mask = (torch.arange(fragments + 2) < fragments).expand(4, -1)
    padded = torch.nn.functional.pad(weights.detach(), (0, 2))
    assert_close(focus(padded, mask, 1, focal)[:, :fragments], kept.detach())


@pytest.mark.parametrize("focal", FOCALS)
@pytest.mark.parametrize("sizes", [(1, 36), (5, 1)], ids=["one word", "one region"])
def test_a_query_alone_is_not_at_the_mercy_of_rounding(focal, sizes):
    """Its products, normalised over the queries, are 1 or -1; what is 1 is liked alike, whatever was rounded how."""
    generator = torch.Generator().manual_seed(0)
    n_words, n_regions = sizes
    images, captions = (
        torch.nn.functional.normalize(torch.randn(40, n, 64, generator=generator) + 0.3, dim=-1)
        for n in (n_regions, n_words)
    )
    model = model_with(focal)
    exact = model.similarity(Code(images.double()), Code(captions.double())).float()
    assert_close(model.similarity(Code(images), Code(captions)), exact, atol=1e-5, rtol=0)
    assert_close(model.similarity(Code(images[:7]), Code(captions[:5])), exact[:7, :5], atol=1e-5, rtol=0)
    assert_close(model.pair_similarity(Code(images), Code(captions)), exact.diagonal(), atol=1e-5, rtol=0)
