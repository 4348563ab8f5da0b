"""BFAN against its definition, written as loops, and its guard where no fragment stands out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from aoq.models import BFAN
from aoq.models.base import Code
from aoq.models.bfan import focus

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


def defined(loops, focal, temperature=20.0):
    def direction(queries, contexts):
        weights = [defined_focus(row, focal) for row in loops.attention(queries, contexts, temperature)]
        attended = [sum(w * v for w, v in zip(row, contexts, strict=True)) for row in weights]
        return sum(loops.cosine(q, v) for q, v in zip(queries, attended, strict=True)) / len(queries)

    return lambda regions, words: direction(words, regions) + direction(regions, words)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    focal=st.sampled_from(FOCALS),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
    block_words=st.sampled_from([1, 6, 128]),
)
def test_similarity_is_its_definition(loops, seed, focal, sizes, block_words):
    n_images, n_captions, n_regions, n_words = sizes
    images, captions = loops.code(seed, n_images, n_regions), loops.code(seed + 1, n_captions, n_words)
    model = model_with(focal)
    model.block_words = block_words
    expected = loops.each_pair(images, captions, defined(loops, focal))
    assert_close(model.similarity(images, captions), expected, atol=1e-6, rtol=1e-6)
    n = torch.arange(min(n_images, n_captions))
    assert_close(model.pair_similarity(images[n], captions[n]), expected.diagonal(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("focal", FOCALS)
def test_gradients_are_those_of_the_definition(loops, focal):
    """None through the choice."""
    model, codes = model_with(focal), [loops.code(3, 3, 5), loops.code(4, 3, 4)]
    gradients = []
    for similarity in (
        lambda i, c: loops.each_pair(i, c, defined(loops, focal)).diagonal(),
        lambda i, c: model.similarity(i, c).diagonal(),
        model.pair_similarity,
    ):
        leaves = [code.vectors.clone().requires_grad_() for code in codes]
        result = similarity(*(Code(leaf, code.mask) for leaf, code in zip(leaves, codes, strict=True)))
        gradients.append(torch.autograd.grad((result * torch.tensor([1.0, -2.0, 3.0])).sum(), leaves))
    assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-6)
    assert_close(gradients[2], gradients[0], atol=1e-6, rtol=1e-6)


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


def test_confidence_tells_the_two_kinds_apart():
    """Mean of all 1/3; mean weighted by roots (0.53 * 0.73 + 0.35 * 0.59 + 0.12 * 0.35) / 1.67 = 0.38."""
    weights = torch.tensor([0.53, 0.35, 0.12])
    assert_close(focus(weights, None, 0, "equal"), torch.tensor([0.53, 0.35, 0.0]) / 0.88)
    assert_close(focus(weights, None, 0, "prob"), torch.tensor([1.0, 0.0, 0.0]))


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
@pytest.mark.parametrize("fragments", [1, 2, 3, 36])
def test_alike_fragments_are_compared_as_one(loops, focal, fragments):
    """Attention cannot choose between equal regions, and must not divide by zero over it."""
    words = loops.code(5, 2, 3)
    region = torch.tensor([[[0.6, 0.8, 0.0]], [[0.0, -0.6, 0.8]]]).double()
    block = model_with(focal).pair_block(Code(region.expand(2, fragments, 3)), words)
    expected = [
        torch.stack([loops.cosine(word, image[0]) for word in caption[mask]]).mean()
        for image, caption, mask in zip(region, words.vectors, words.mask, strict=True)
    ]
    assert_close(model_with(focal).focused(block, "t2i").squeeze(1), torch.stack(expected))


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
