"""The lists of a table by their definition."""

import numpy as np


def unit(rng, rows, dimensions=8):
    return by_norm(rng.normal(size=(rows, dimensions)))


def by_norm(vectors):
    vectors = vectors.astype(np.float64)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def world_of_pairs(seed, images=30, each=3, dimensions=6):
    """Images, captions near their own image, some equal to another's, and whose captions they are."""
    rng, image_of = np.random.default_rng(seed), np.repeat(np.arange(images, dtype=np.int32), each)
    vectors = rng.normal(size=(images, dimensions)).astype(np.float32)
    captions = (vectors[image_of] + rng.normal(size=(images * each, dimensions))).astype(np.float32)
    captions[40:45] = captions[7]
    return vectors, captions, image_of


def slow(anchors, candidates, own, h, *, one_set):
    """Every candidate but positives (and the anchor, in one set), by similarity, then by row; the lowest positive."""
    scores = (anchors.astype(np.float64) @ candidates.astype(np.float64).T).astype(np.float32)
    ids = []
    for anchor in range(len(anchors)):
        left_out = {*own[anchor], *[anchor] * one_set}
        rest = [row for row in range(len(candidates)) if row not in left_out]
        ids.append(sorted(rest, key=lambda row: (-scores[anchor, row], row))[:h])
    lowest = [min((scores[anchor, row] for row in own[anchor]), default=np.nan) for anchor in range(len(anchors))]
    return np.array(ids), np.take_along_axis(scores, np.array(ids), axis=1), np.array(lowest, dtype=np.float32)


def check(lists, anchors, candidates, own, h, *, metric="cosine", one_set=False):
    sides = (anchors, candidates) if metric == "dot" else (by_norm(anchors), by_norm(candidates))
    ids, scores, lowest = slow(*sides, own, h, one_set=one_set)
    np.testing.assert_array_equal(lists.negative_ids, ids)
    np.testing.assert_array_equal(lists.scores, scores)
    np.testing.assert_array_equal(lists.positive_score, lowest)
