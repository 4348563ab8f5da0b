"""Cross-retrieval ranks against their definition, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.evaluation.retrieval import cross_retrieval_ranks, rank_histogram


def slow(similarity, image_of):
    found = []
    images, captions = similarity.shape
    for caption, image in enumerate(image_of):
        score = similarity[image, caption]
        among_images = 1 + sum(similarity[other, caption] >= score for other in range(images) if other != image)
        among_captions = 1 + sum(
            similarity[image, other] >= score for other in range(captions) if image_of[other] != image
        )
        weight = sum(image_of != image) / (images - 1)
        found.append(max(weight * (among_images - 1) + 1, among_captions))
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_any_pairing_and_ties(seed):
    rng = np.random.default_rng(seed)
    image_of = rng.permutation(np.concatenate([np.arange(7), rng.integers(0, 7, 12)]))
    similarity = rng.integers(0, 6, (7, len(image_of))) / 4
    np.testing.assert_allclose(cross_retrieval_ranks(similarity, image_of), slow(similarity, image_of))


def test_with_five_captions_it_is_the_papers():
    rng = np.random.default_rng(1)
    similarity, image_of = rng.normal(size=(9, 45)).astype(np.float32), np.repeat(np.arange(9), 5)
    ranks = cross_retrieval_ranks(similarity, image_of)
    for caption, image in enumerate(image_of):
        score = similarity[image, caption]
        r_i = 1 + (similarity[:, caption] > score).sum()
        r_t = 1 + (np.delete(similarity[image], np.flatnonzero(image_of == image)) > score).sum()
        assert ranks[caption] == max(5 * r_i - 4, r_t)
    assert rank_histogram(ranks).sum() == 45
