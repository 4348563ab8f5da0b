"""NAAF's similarity against its definition, written as loops, in training and in evaluation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from aoq.models import NAAF
from aoq.models.base import Code


def model_with(threshold=0.2, safe_threshold=0.3, training=False, **options):
    model = NAAF(feature_size=1, vocabulary_size=1, embedding_size=1, word_size=1, **options)
    model.threshold.fill_(threshold)
    model.safe_threshold.fill_(safe_threshold)
    return model.double().train(training)


def defined(loops, threshold, *, training, temperature=20.0):
    """The mean over words of: how far no region fits, cosine with what fits, and relevance of all."""

    def similarity(regions, words):
        relevances = loops.attention(words, regions, temperature)
        margins = [max(word @ v for v in regions) - threshold for word in words]
        scores = []
        for i, word in enumerate(words):
            likeness = [(5 * (word @ other)).exp() for other in words]
            propagated = sum(a * m for a, m in zip(likeness, margins, strict=True)) / sum(likeness)
            decisive = margins[i] if training else propagated
            negative = margins[i] if decisive < 0 else 0.0
            fitting = [v for v in regions if word @ v > threshold]
            positive = 0.0
            if fitting:
                weights = [(temperature * (word @ v - threshold)).exp() for v in fitting]
                attended = sum(w * v for w, v in zip(weights, fitting, strict=True)) / sum(weights)
                positive = (word @ attended) / attended.norm()
            relevance = sum(a * (word @ v) for a, v in zip(relevances[i], regions, strict=True))
            scores.append(negative + positive + relevance)
        return torch.stack(scores).mean()

    return similarity


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**16),
    training=st.booleans(),
    threshold=st.sampled_from([0.0, 0.25, 0.6, 0.95]),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(1, 6)),
    block_words=st.sampled_from([1, 6, 128]),
    unit=st.booleans(),
)
def test_similarity_is_its_definition(loops, seed, training, threshold, sizes, block_words, unit):
    n_images, n_captions, n_regions, n_words = sizes
    images = loops.code(seed, n_images, n_regions, unit=unit)
    captions = loops.code(seed + 1, n_captions, n_words, unit=unit)
    model = model_with(*((threshold, 9.0) if training else (9.0, threshold)), training)
    model.block_words = block_words
    expected = loops.each_pair(images, captions, defined(loops, threshold, training=training))
    assert_close(model.similarity(images, captions), expected, atol=1e-6, rtol=1e-6)
    n = torch.arange(min(n_images, n_captions))
    assert_close(model.pair_similarity(images[n], captions[n]), expected.diagonal(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("training", [False, True])
def test_gradients_are_those_of_the_definition(loops, training):
    model, codes = model_with(training=training), [loops.code(3, 3, 5), loops.code(4, 3, 4)]
    definition = defined(loops, 0.2 if training else 0.3, training=training)
    gradients = []
    for similarity in (
        lambda i, c: loops.each_pair(i, c, definition).diagonal(),
        lambda i, c: model.similarity(i, c).diagonal(),
        model.pair_similarity,
    ):
        leaves = [code.vectors.clone().requires_grad_() for code in codes]
        result = similarity(*(Code(leaf, code.mask) for leaf, code in zip(leaves, codes, strict=True)))
        gradients.append(torch.autograd.grad((result * torch.tensor([1.0, -2.0, 3.0])).sum(), leaves))
    assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-6)
    assert_close(gradients[2], gradients[0], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("threshold", "counts"), [(0.306, True), (0.299, False)])
def test_evaluation_decides_by_like_words_but_counts_the_word_itself(threshold, counts):
    """A word that fits by m among three that miss by n, at cosine 0.5 to each.

    Where e^5 m < 3 e^2.5 n it counts as mismatched, and m is added though it is not negative.
    """
    images = Code(torch.tensor([[[1.0, 0.0, 0.0, 0.0]]]).double())
    fits, s = [0.5, 0.0, math.sqrt(0.75), 0.0], math.sqrt(0.75)
    captions = Code(torch.tensor([[fits, [-0.5, 0.0, s, 0.0], [-0.5, 0.01, s, 0.0], [-0.5, 0.0, s, 0.01]]]).double())
    evaluated = model_with(safe_threshold=threshold).similarity(images, captions)
    trained = model_with(threshold=threshold, training=True).similarity(images, captions)
    expected = (0.5 - threshold) / 4 if counts else 0.0
    assert_close(evaluated - trained, torch.tensor([[expected]]).double(), atol=1e-6, rtol=0)
