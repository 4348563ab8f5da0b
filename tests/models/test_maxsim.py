"""MaxSim against its definition, written as loops over images, captions and fragments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from aoq.models import fragments
from aoq.models.base import Code
from aoq.models.maxsim import MaxSim

CLOSE = {"atol": 1e-9, "rtol": 1e-9}
DIRECTIONS, AGGREGATIONS = ("t2i", "i2t", "both"), ("Mean", "Sum")


def model_with(direction="t2i", aggregation="Mean", block_words=128):
    sizes = {"feature_size": 1, "vocabulary_size": 1, "embedding_size": 1, "word_size": 1}
    model = MaxSim(**sizes, direction=direction, aggregation=aggregation)
    model.block_words = block_words
    return model


def defined(direction, aggregation):
    """The similarity of one pair."""

    def one_way(queries, contexts):
        total = sum(max(q @ v for v in contexts) for q in queries)
        return total / len(queries) if aggregation == "Mean" else total

    def similarity(regions, words):
        ways = {"t2i": lambda: one_way(words, regions), "i2t": lambda: one_way(regions, words)}
        return (ways["t2i"]() + ways["i2t"]()) / 2 if direction == "both" else ways[direction]()

    return similarity


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    direction=st.sampled_from(DIRECTIONS),
    aggregation=st.sampled_from(AGGREGATIONS),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6)),
    block_words=st.sampled_from([1, 6, 128]),
    unit=st.booleans(),
)
def test_similarity_is_its_definition(loops, seed, direction, aggregation, sizes, block_words, unit):
    n_images, n_captions, n_regions, n_words = sizes
    images = loops.code(seed, n_images, n_regions, unit=unit)
    captions = loops.code(seed + 1, n_captions, n_words, unit=unit)
    model = model_with(direction, aggregation, block_words)
    expected = loops.each_pair(images, captions, defined(direction, aggregation))
    assert_close(model.similarity(images, captions), expected, **CLOSE)
    n = torch.arange(min(n_images, n_captions))
    assert_close(model.pair_similarity(images[n], captions[n]), expected.diagonal(), **CLOSE)


def gradients(similarity, images, captions):
    """Gradients of an uneven sum of the similarities, for all region and word vectors."""
    leaves = [code.vectors.clone().requires_grad_() for code in (images, captions)]
    result = similarity(*(Code(leaf, code.mask) for leaf, code in zip(leaves, (images, captions), strict=True)))
    return torch.autograd.grad((result * torch.arange(result.numel()).cos().view_as(result)).sum(), leaves)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradients_are_those_of_the_definition(loops, direction, aggregation):
    """The matrix in blocks of any size, and pairs, have the definition's gradients."""
    images, captions = loops.code(3, 3, 4), loops.code(4, 5, 4)
    pair = defined(direction, aggregation)
    expected = gradients(lambda i, c: loops.each_pair(i, c, pair), images, captions)
    for block_words in (1, 5, 128):
        found = gradients(model_with(direction, aggregation, block_words).similarity, images, captions)
        assert_close(found, expected, **CLOSE)
    captions = captions[:3]
    expected = gradients(lambda i, c: loops.each_pair(i, c, pair).diagonal(), images, captions)
    assert_close(gradients(model_with(direction, aggregation).pair_similarity, images, captions), expected, **CLOSE)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_tiles_without_gradients(loops, monkeypatch, direction):
    images, captions = loops.code(7, 7, 3, size=4), loops.code(8, 9, 6, size=4)
    expected = model_with(direction).similarity(images, captions)
    monkeypatch.setattr(fragments, "TILE_IMAGES", 2)
    monkeypatch.setattr(fragments, "TILE_CAPTIONS", 4)
    with torch.no_grad():
        assert_close(model_with(direction).similarity(images, captions), expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_image_without_regions_is_similar_to_nothing(loops, direction):
    images, captions = loops.code(9, 3, 4), loops.code(10, 3, 4)
    images.mask[1] = False
    for similarity in (model_with(direction).similarity, model_with(direction).pair_similarity):
        result = similarity(images, captions)
        assert not result[1].any()
        assert result[0].all()
        assert all(leaf[torch.tensor([0, 2])].isfinite().all() for leaf in gradients(similarity, images, captions))


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_attention_is_all_on_the_best_match(loops, direction):
    images, captions = loops.code(11, 3, 4), loops.code(12, 3, 5)
    (found,) = model_with(direction).fragment_attention(images, captions)
    for pair, (queries, keys) in enumerate(zip(found.queries, found.keys, strict=True)):
        for q in found.query_mask[pair].nonzero().flatten().tolist():
            real = found.key_mask[pair].nonzero().flatten().tolist()
            best = max(real, key=lambda k: float(queries[q] @ keys[k]))
            assert found.weights[pair, q].tolist() == [float(k == best) for k in range(len(keys))]


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_what_is_kept_for_the_gradient_does_not_grow_with_the_products(loops, direction):
    """A word and image, or a region and caption, keep the place of the best match, not their products."""
    images, captions = loops.code(13, 6, 40), loops.code(14, 8, 20)
    images, captions = (Code(code.vectors.requires_grad_()) for code in (images, captions))
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.setdefault(id(one), one), lambda one: one):
        model_with(direction).similarity(images, captions)
    assert max(one.numel() for one in kept.values()) < 6 * 40 * 8 * 20 / 4
