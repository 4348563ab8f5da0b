"""IMRAM against its definition, written as loops over pairs, rounds and fragments."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from aoq.models import IMRAM
from aoq.models.base import Code
from aoq.models.imram import DIRECTIONS, Memory

CASES = [(mode, steps) for mode in DIRECTIONS for steps in (1, 2, 3)]


def model_with(mode, steps):
    model = IMRAM(
        feature_size=1, vocabulary_size=1, embedding_size=3, word_size=1, mode=mode, steps=steps, temperature=7.0
    ).double()
    generator = torch.Generator().manual_seed(steps)
    for parameter in model.parameters():
        parameter.data.uniform_(-1, 1, generator=generator)
    return model


def gated(memory, query, seen):
    """q <- g q + (1 - g) tanh(W [q; c]), g = sigmoid(W' [q; c])."""
    gate, update = (
        own @ query + other @ seen + bias
        for own, other, bias in zip(
            memory.own.weight.chunk(2), memory.seen.weight.chunk(2), memory.own.bias.chunk(2), strict=True
        )
    )
    return gate.sigmoid() * query + (1 - gate.sigmoid()) * update.tanh()


def defined(loops, model):
    """Attend in rounds: every query looks; the similarity is that of the original fragment to what was seen."""

    def direction_similarity(direction, originals, contexts):
        queries, total = list(originals), 0.0
        for step in range(model.steps):
            weights = loops.attention(queries, contexts, model.temperature)
            seen = [sum(w * v for w, v in zip(row, contexts, strict=True)) for row in weights]
            cosines = [loops.cosine(original, c) for original, c in zip(originals, seen, strict=True)]
            total = total + sum(cosines) / len(cosines)
            if step < model.steps - 1:
                memory = model.memory[direction]
                queries = [gated(memory, query, c) for query, c in zip(queries, seen, strict=True)]
        return total

    def similarity(regions, words):
        total = 0.0
        for direction in DIRECTIONS[model.mode]:
            originals, contexts = (words, regions) if direction == "t2i" else (regions, words)
            total = total + direction_similarity(direction, originals, contexts)
        return total

    return similarity


@pytest.mark.parametrize(("mode", "steps"), CASES)
def test_similarity_is_its_definition(loops, mode, steps):
    model = model_with(mode, steps)
    images, captions = loops.code(1, 3, 5), loops.code(2, 4, 4)
    expected = loops.each_pair(images, captions, defined(loops, model))
    n = torch.arange(3)
    for block_words in (1, 5, 16):
        model.block_words = block_words
        assert_close(model.similarity(images, captions), expected, atol=1e-7, rtol=1e-6)
    assert_close(model.pair_similarity(images[n], captions[n]), expected.diagonal(), atol=1e-7, rtol=1e-6)
    with torch.no_grad():
        assert_close(model.similarity(images, captions), expected, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize(("mode", "steps"), CASES)
def test_gradients_are_those_of_the_definition(loops, mode, steps):
    """Gradients reach fragments and the memory's weights, though the backward pass computes the rounds again."""
    model, codes = model_with(mode, steps), [loops.code(3, 3, 4), loops.code(4, 3, 4)]
    model.block_words = 5
    gradients = []
    for similarity in (
        lambda i, c: loops.each_pair(i, c, defined(loops, model)).diagonal(),
        lambda i, c: model.similarity(i, c).diagonal(),
        model.pair_similarity,
    ):
        leaves = [code.vectors.clone().requires_grad_() for code in codes]
        result = similarity(*(Code(leaf, code.mask) for leaf, code in zip(leaves, codes, strict=True)))
        wanted = [*leaves, *model.memory.parameters()]
        gradients.append(torch.autograd.grad((result * torch.tensor([1.0, -2.0, 3.0])).sum(), wanted))
    assert_close(gradients[1], gradients[0], atol=1e-7, rtol=1e-6)
    assert_close(gradients[2], gradients[0], atol=1e-7, rtol=1e-6)


def test_a_refined_query_is_gated():
    """With large biases the gate keeps the query, or lets the update through."""
    memory, query = Memory(2), torch.tensor([[0.3, -0.4]])
    for parameter in memory.parameters():
        parameter.data.zero_()
    for bias, expected in (
        ([50.0, 50.0, 1.0, 2.0], query),
        ([-50.0, -50.0, 1.0, 2.0], torch.tensor([[1.0, 2.0]]).tanh()),
    ):
        memory.own.bias.data = torch.tensor(bias)
        assert_close(memory(query, memory.own(query)), expected)


def test_parts_are_those_of_the_mode():
    for mode, steps in CASES:
        model = model_with(mode, steps)
        assert set(model.memory) == (set(DIRECTIONS[mode]) if steps > 1 else set())
