"""SCAN against its definition, written as loops over images, captions and fragments."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from models import SCAN, scan
from models.attention import paired_cosine
from models.base import Code
from models.blockwise import all_cosines, equal_length_runs


def model_with(direction, aggregation, temperature=None, temperature_lse=6.0):
    return SCAN(
        feature_size=1,
        vocabulary_size=1,
        embedding_size=1,
        word_size=1,
        direction=direction,
        aggregation=aggregation,
        temperature=temperature,
        temperature_lse=temperature_lse,
    )


def defined_cosines(queries, contexts, temperature):
    """Every query attends to the contexts; products are clipped, then normalised over the queries."""
    clipped = [[max(float(q @ v), 0.1 * float(q @ v)) for v in contexts] for q in queries]
    norms = [math.sqrt(sum(row[k] ** 2 for row in clipped)) + 1e-8 for k in range(len(contexts))]
    cosines = []
    for q, row in zip(queries, clipped, strict=True):
        weights = [math.exp(temperature * x / norm) for x, norm in zip(row, norms, strict=True)]
        attended = sum(w * v for w, v in zip(weights, contexts, strict=True)) / sum(weights)
        length = max(float(q.norm() * attended.norm()), 1e-8)
        cosines.append(float(q @ attended) / length)
    return cosines


def defined_similarity(regions, words, direction, aggregation, temperature, temperature_lse):
    queries, contexts = (words, regions) if direction == "t2i" else (regions, words)
    cosines = defined_cosines(queries, contexts, temperature)
    if aggregation == "Mean":
        return sum(cosines) / len(cosines)
    return math.log(sum(math.exp(temperature_lse * cosine) for cosine in cosines)) / temperature_lse


def random_code(generator, items, fragments, size, *, unit):
    """Any mask with at least one real fragment an item, and garbage where it is False."""
    vectors = torch.randn(items, fragments, size, generator=generator, dtype=torch.float64)
    vectors = vectors / vectors.norm(dim=-1, keepdim=True) if unit else vectors
    mask = torch.rand(items, fragments, generator=generator) < 0.7
    mask[torch.arange(items), torch.randint(fragments, (items,), generator=generator)] = True
    garbage = torch.full_like(vectors, torch.nan)
    return Code(torch.where(mask.unsqueeze(-1), vectors, garbage), mask)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    direction=st.sampled_from(["t2i", "i2t"]),
    aggregation=st.sampled_from(["Mean", "LogSumExp"]),
    temperature=st.sampled_from([None, 1.0, 20.0]),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6)),
    unit=st.booleans(),
)
def test_similarity_is_its_definition(seed, direction, aggregation, temperature, sizes, unit):
    generator = torch.Generator().manual_seed(seed)
    n_images, n_captions, n_regions, n_words = sizes
    images = random_code(generator, n_images, n_regions, 3, unit=unit)
    captions = random_code(generator, n_captions, n_words, 3, unit=unit)
    model = model_with(direction, aggregation, temperature)
    expected = torch.tensor(
        [
            [
                defined_similarity(image[image_mask], words[word_mask], direction, aggregation, model.temperature, 6.0)
                for words, word_mask in zip(captions.vectors, captions.mask, strict=True)
            ]
            for image, image_mask in zip(images.vectors, images.mask, strict=True)
        ]
    ).double()
    assert_close(model.similarity(images, captions), expected, atol=1e-6, rtol=1e-6)
    n = min(n_images, n_captions)
    pairs = model.pair_similarity(images[torch.arange(n)], captions[torch.arange(n)])
    assert_close(pairs, expected.diagonal(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
@pytest.mark.parametrize("most", [1, 6, 1000])
def test_hand_written_gradient(direction, most):
    generator = torch.Generator().manual_seed(3)
    runs = equal_length_runs([1, 2, 2, 2, 5], most)
    regions = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    words = torch.randn(12, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda r, w: all_cosines(r, w, runs, direction=direction, temperature=4.0), (regions, words)
    )


@pytest.mark.parametrize("direction", ["t2i", "i2t"])
def test_gradients_of_pairs_and_matrix_agree(direction):
    generator = torch.Generator().manual_seed(4)
    model = model_with(direction, "LogSumExp")
    images = random_code(generator, 4, 5, 6, unit=True)
    captions = random_code(generator, 4, 3, 6, unit=True)
    gradients = []
    for similarity in (lambda i, c: model.similarity(i, c).diagonal(), model.pair_similarity):
        leaves = [images.vectors.clone().requires_grad_(), captions.vectors.clone().requires_grad_()]
        similarity(Code(leaves[0], images.mask), Code(leaves[1], captions.mask)).sum().backward()
        gradients.append([leaf.grad for leaf in leaves])
    for matrix, pair in zip(*gradients, strict=True):
        assert_close(matrix, pair)


def test_tiles_without_gradients(monkeypatch):
    generator = torch.Generator().manual_seed(5)
    images, captions = random_code(generator, 7, 3, 4, unit=True), random_code(generator, 9, 6, 4, unit=True)
    model = model_with("t2i", "Mean")
    expected = model.similarity(images, captions)
    monkeypatch.setattr(scan, "TILE_IMAGES", 2)
    monkeypatch.setattr(scan, "TILE_CAPTIONS", 4)
    with torch.no_grad():
        assert_close(model.similarity(images, captions), expected)


def test_opposite_vectors_do_not_divide_by_zero():
    """Two opposite regions attended alike leave nothing to compare with."""
    v, q = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    cosines = paired_cosine(q.view(1, 1, 2), torch.stack([v, -v]).unsqueeze(0), temperature=9.0)
    assert torch.equal(cosines, torch.zeros(1, 1))


def test_range_and_temperature():
    assert model_with("t2i", "Mean").similarity_range == (-1.0, 1.0)
    low, high = model_with("t2i", "LogSumExp", temperature_lse=6.0).similarity_range
    assert (low, high) == (-1.0, 1.0 + math.log(100) / 6.0)
    assert [model_with(direction, "Mean").temperature for direction in ("t2i", "i2t")] == [9.0, 4.0]
    with pytest.raises(ValueError, match=r"temperature=100\.0 is outside"):
        model_with("t2i", "Mean", temperature=100.0)
