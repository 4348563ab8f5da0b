"""The attention that models show is the one their similarities are made of."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import FragmentAttention
from aoq.models.normalise import clipped_unit

SIZES = {"feature_size": 3, "vocabulary_size": 9, "embedding_size": 3, "word_size": 2}


def mean_cosine(found: FragmentAttention, pair: int, loops) -> torch.Tensor:
    real = found.query_mask[pair].nonzero().flatten()
    attended = found.weights[pair] @ found.keys[pair]
    return torch.stack([loops.cosine(found.queries[pair, query], attended[query]) for query in real]).mean()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("scan", {"direction": "t2i", "aggregation": "Mean"}),
        ("scan", {"direction": "i2t", "aggregation": "Mean", "normalisation": "softmax"}),
        ("bfan", {"focal": "equal"}),
        ("bfan", {"focal": "prob"}),
        ("imram", {"mode": "full", "steps": 1}),
    ],
    ids=str,
)
def test_similarities_are_mean_cosines_of_what_is_attended_to(name, options, loops):
    model = build_model(name, **SIZES, **options).double()
    images, captions = loops.code(0, 6, 5), loops.code(1, 6, 7)
    found = model.fragment_attention(images, captions)
    expected = [sum(mean_cosine(direction, pair, loops) for direction in found) for pair in range(6)]
    assert_close(model.pair_similarity(images, captions), torch.stack(expected), rtol=0, atol=1e-7)


def test_words_of_naaf_attend_to_regions_above_the_threshold(loops):
    model = build_model("naaf", **SIZES).double().eval()
    model.safe_threshold.fill_(0.3)
    (found,) = model.fragment_attention(loops.code(0, 4, 5), loops.code(1, 4, 7))
    for pair in range(4):
        for query in found.query_mask[pair].nonzero().flatten():
            products = found.keys[pair] @ found.queries[pair, query]
            logits = torch.where((products > 0.3) & found.key_mask[pair], 20 * products, -torch.inf)
            assert_close(found.weights[pair, query], logits.softmax(0).nan_to_num(0), rtol=0, atol=1e-7)


@pytest.mark.parametrize("slope", [0.1, 1.0])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_clipped_unit_is_its_formula(generator, slope, dim):
    x = torch.randn(3, 4, 2, generator=generator)
    clipped = torch.where(x < 0, slope * x, x)
    assert_close(clipped_unit(x, dim, slope), clipped / clipped.norm(dim=dim, keepdim=True))
    alone = torch.randn(1, 1000, generator=generator)
    assert clipped_unit(alone, 0, 1.0).abs().eq(1).all()


def test_a_clipped_zero_vector_is_zero_and_passes_the_gradient_on():
    x = torch.zeros(2, 3, requires_grad=True)
    clipped_unit(x, 1, 1.0).sum().backward()
    assert not clipped_unit(x, 1, 1.0).any()
    assert torch.equal(x.grad, torch.ones(2, 3))
