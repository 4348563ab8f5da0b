"""CCR and CCS against the paper's sentences in loops, with gradients; what is drawn, and what is left out."""

import math
from dataclasses import replace

import pytest
import torch

from aoq.models.base import FragmentAttention
from aoq.pipeline.losses.contrastive_content import content_similarities, pick
from aoq.pipeline.losses.hinge import hinge

PAIRS, QUERIES, KEYS, SIZE = 12, 6, 5, 4


def attention(seed, direction):
    """Any real fragments at any place, sharp and flat weights; NaN never, as models give none."""
    generator = torch.Generator().manual_seed(seed)
    query_mask = torch.rand(PAIRS, QUERIES, generator=generator) < 0.7
    key_mask = torch.rand(PAIRS, KEYS, generator=generator) < 0.6
    key_mask[:, 1] = True
    leaves = {
        "queries": torch.randn(PAIRS, QUERIES, SIZE, generator=generator, dtype=torch.float64),
        "keys": torch.randn(PAIRS, KEYS, SIZE, generator=generator, dtype=torch.float64),
        "logits": 3 * torch.randn(PAIRS, QUERIES, KEYS, generator=generator, dtype=torch.float64),
    }
    for leaf in leaves.values():
        leaf.requires_grad_()
    weights = leaves["logits"].masked_fill(~key_mask.unsqueeze(1), -1e9).softmax(2) * query_mask.unsqueeze(2)
    weights = weights * (torch.arange(PAIRS) != 3)[:, None, None]  # pair 3 attends to nothing, as words of NAAF may
    found = FragmentAttention(direction, leaves["queries"], leaves["keys"], weights, query_mask, key_mask)
    return found, list(leaves.values())


def by_definition(attention, uniform, margin=0.2):
    """The sums of eqs. (6) and (7), one pair and one key at a time."""
    ccr = ccs = 0.0
    for pair in range(len(attention.queries)):
        real = attention.query_mask[pair].nonzero().flatten().tolist()
        eligible = real if attention.direction == "i2t" or not attention.has_ends else real[1:-1]
        attending = [query for query in eligible if attention.weights[pair, query].sum() > 0]
        if not attending:
            continue
        drawn = attending[math.floor(float(uniform[0, pair]) * len(attending))]
        others = [query for query in eligible if query != drawn]
        keys = [key for key in range(attention.keys.shape[1]) if attention.key_mask[pair, key]]
        weight, vector = attention.weights[pair, drawn], attention.keys[pair]
        attended = sum(weight[key] * vector[key] for key in keys)
        sim = torch.nn.functional.cosine_similarity
        own = sim(attention.queries[pair, drawn], attended, dim=0)
        if len(keys) > 1:
            total = sum(1 - weight[key] for key in keys)
            rest = sum((1 - weight[key]) / total * vector[key] for key in keys)
            ccr = ccr + torch.relu(sim(attention.queries[pair, drawn], rest, dim=0) - own + margin)
        if others:
            negative = attention.queries[pair, others[math.floor(float(uniform[1, pair]) * len(others))]]
            ccs = ccs + torch.relu(sim(negative, attended, dim=0) - own + margin)
    return ccr, ccs


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize(("seed", "has_ends"), [(0, True), (1, True), (2, False)])
def test_values_and_gradients_are_the_papers(direction, seed, has_ends):
    found, leaves = attention(seed, direction)
    found = replace(found, has_ends=has_ends)
    uniform = torch.rand(2, PAIRS, generator=torch.Generator().manual_seed(seed + 9), dtype=torch.float64)
    attended, others = content_similarities(found, uniform)
    terms = [hinge(attended, others[name], margin=0.2).sum() for name in ("ccr", "ccs")]
    for term, expected in zip(terms, by_definition(found, uniform), strict=True):
        torch.testing.assert_close(term, expected, rtol=0, atol=1e-6)
        assert expected > 0
        gradients = torch.autograd.grad(term, leaves, retain_graph=True)
        for gradient, slow in zip(gradients, torch.autograd.grad(expected, leaves, retain_graph=True), strict=True):
            torch.testing.assert_close(gradient, slow, rtol=0, atol=1e-6)


def test_every_query_is_drawn_as_often():
    mask = torch.tensor([[False, True, True, False, True]]).expand(30_000, -1)
    uniform = torch.rand(30_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = pick(mask, uniform).bincount(minlength=5) / 30_000
    torch.testing.assert_close(share, torch.tensor([0, 1, 1, 0, 1]) / 3, rtol=0, atol=0.01)
    assert pick(mask[:1], torch.tensor([1 - 2**-53], dtype=torch.float64)).tolist() == [4]
