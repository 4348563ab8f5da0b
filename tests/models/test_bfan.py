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


@pytest.mark.parametrize("focal", FOCALS)
@pytest.mark.parametrize("fragments", [1, 3])
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
