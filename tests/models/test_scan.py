"""SCAN against its definition, written as loops over images, captions and fragments."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from aoq.models import SCAN, fragments
from aoq.models.attention import Aggregation, Direction, Normalisation
from aoq.models.base import Code

DIRECTIONS, AGGREGATIONS, NORMALISATIONS = map(get_args, (Direction, Aggregation, Normalisation))


def model_with(direction="t2i", aggregation="Mean", normalisation="clipped_l2norm", **options):
    sizes = {"feature_size": 1, "vocabulary_size": 1, "embedding_size": 1, "word_size": 1}
    return SCAN(**sizes, direction=direction, aggregation=aggregation, normalisation=normalisation, **options)


def defined(loops, model):
    """The similarity of one pair: what each query attends to, their cosine, and one number of all cosines."""

    def similarity(regions, words):
        queries, contexts = (words, regions) if model.direction == "t2i" else (regions, words)
        weights = loops.attention(queries, contexts, model.temperature, model.normalisation)
        attended = [sum(w * v for w, v in zip(row, contexts, strict=True)) for row in weights]
        cosines = [loops.cosine(q, v) for q, v in zip(queries, attended, strict=True)]
        if model.aggregation == "Mean":
            return sum(cosines) / len(cosines)
        if model.aggregation == "Sum":
            return sum(cosines)
        if model.aggregation == "Max":
            return max(cosines)
        return sum((model.temperature_lse * cosine).exp() for cosine in cosines).log() / model.temperature_lse

    return similarity


def first(code, count):
    return code[torch.arange(count)]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    direction=st.sampled_from(DIRECTIONS),
    aggregation=st.sampled_from(AGGREGATIONS),
    normalisation=st.sampled_from(NORMALISATIONS),
    temperature=st.sampled_from([None, 1.0, 20.0]),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6)),
    block_words=st.sampled_from([1, 6, 128]),
    unit=st.booleans(),
)
def test_similarity_is_its_definition(
    loops, seed, direction, aggregation, normalisation, temperature, sizes, block_words, unit
):
    n_images, n_captions, n_regions, n_words = sizes
    images = loops.code(seed, n_images, n_regions, unit=unit)
    captions = loops.code(seed + 1, n_captions, n_words, unit=unit)
    model = model_with(direction, aggregation, normalisation, temperature=temperature, temperature_lse=5.0)
    model.block_words = block_words
    expected = loops.each_pair(images, captions, defined(loops, model))
    assert_close(model.similarity(images, captions), expected, atol=1e-6, rtol=1e-6)
    n = min(n_images, n_captions)
    assert_close(model.pair_similarity(first(images, n), first(captions, n)), expected.diagonal(), atol=1e-6, rtol=1e-6)


def gradients(similarity, images, captions):
    """Gradients of an uneven sum of the similarities, for all region and word vectors."""
    leaves = [code.vectors.clone().requires_grad_() for code in (images, captions)]
    result = similarity(*(Code(leaf, code.mask) for leaf, code in zip(leaves, (images, captions), strict=True)))
    return torch.autograd.grad((result * torch.arange(result.numel()).cos().view_as(result)).sum(), leaves)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_gradients_are_those_of_the_definition(loops, direction, normalisation):
    """The matrix in blocks of any size, and pairs, have the definition's gradients."""
    images, captions = loops.code(3, 2, 4), loops.code(4, 3, 4)
    model = model_with(direction, "LogSumExp", normalisation)
    expected = gradients(lambda i, c: loops.each_pair(i, c, defined(loops, model)), images, captions)
    for block_words in (1, 5, 128):
        model.block_words = block_words
        assert_close(gradients(model.similarity, images, captions), expected, atol=1e-6, rtol=1e-6)
    images, captions = first(images, 2), first(captions, 2)
    expected = gradients(lambda i, c: loops.each_pair(i, c, defined(loops, model)).diagonal(), images, captions)
    assert_close(gradients(model.pair_similarity, images, captions), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gradients_of_pairs_and_matrix_agree(loops, direction, aggregation):
    images, captions = loops.code(5, 4, 5, size=6), loops.code(6, 4, 3, size=6)
    model = model_with(direction, aggregation)
    of_matrix = gradients(lambda i, c: model.similarity(i, c).diagonal(), images, captions)
    assert_close(of_matrix, gradients(model.pair_similarity, images, captions))


@pytest.mark.parametrize("tiles", [(1, 1), (2, 4), (7, 3), (100, 100)], ids=str)
def test_tiles_without_gradients(loops, monkeypatch, tiles):
    images, captions = loops.code(7, 7, 3, size=4), loops.code(8, 9, 6, size=4)
    model = model_with()
    expected = model.similarity(images, captions)
    monkeypatch.setattr(fragments, "TILE_IMAGES", tiles[0])
    monkeypatch.setattr(fragments, "TILE_CAPTIONS", tiles[1])
    with torch.no_grad():
        assert_close(model.similarity(images, captions), expected)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_zero_vectors_compare_as_zero(loops, direction, normalisation):
    """A zero image or caption is similar to nothing; one zero fragment leaves all gradients finite."""
    images, captions = loops.code(9, 3, 4), loops.code(10, 3, 4)
    images.vectors[0] = captions.vectors[1] = images.vectors[1, 2] = captions.vectors[2, 3] = 0.0
    model = model_with(direction, "Mean", normalisation)
    matrix = model.similarity(images, captions)
    assert not matrix[0].any()
    assert not matrix[:, 1].any()
    assert matrix[1:, [0, 2]].all()
    for similarity in (model.similarity, model.pair_similarity):
        assert all(leaf.isfinite().all() for leaf in gradients(similarity, images, captions))


def test_opposite_vectors_compare_as_zero():
    """Two opposite regions attended alike leave nothing to compare with."""
    v, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    images, captions = Code(torch.stack([v, -v]).unsqueeze(0)), Code(q.view(1, 1, 2))
    assert torch.equal(model_with().similarity(images, captions), torch.zeros(1, 1))
    assert torch.equal(model_with().pair_similarity(images, captions), torch.zeros(1))


def test_temperature_is_that_of_the_direction():
    assert [model_with(direction).temperature for direction in DIRECTIONS] == [9.0, 4.0]
    assert model_with("i2t", temperature=7.5).temperature == 7.5
