"""Cross-retrieval ranks against their definition, pair by pair."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.evaluation.retrieval import cross_retrieval_ranks, rank_histogram


def slow(similarity, image_of, identity=None):
    found = []
    images, captions = similarity.shape
    same = np.arange(images) if identity is None else identity
    for caption, image in enumerate(image_of):
        score = similarity[image, caption]
        other_images = [other for other in range(images) if same[other] != same[image]]
        other_captions = [other for other in range(captions) if same[image_of[other]] != same[image]]
        among_images = 1 + sum(similarity[other, caption] >= score for other in other_images)
        among_captions = 1 + sum(similarity[image, other] >= score for other in other_captions)
        weight = len(other_captions) / len(other_images)
        found.append(max(weight * (among_images - 1) + 1, among_captions))
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_any_pairing_and_ties(seed):
    rng = np.random.default_rng(seed)
    image_of = rng.permutation(np.concatenate([np.arange(7), rng.integers(0, 7, 12)]))
    similarity = rng.integers(0, 6, (7, len(image_of))) / 4
    np.testing.assert_allclose(cross_retrieval_ranks(similarity, image_of), slow(similarity, image_of))
    copies = rng.integers(0, 3, 7)
    found = cross_retrieval_ranks(similarity, image_of, copies)
    np.testing.assert_allclose(found, slow(similarity, image_of, copies))
    assert (found <= cross_retrieval_ranks(similarity, image_of)).any()


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
