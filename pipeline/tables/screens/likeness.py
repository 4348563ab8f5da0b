"""How similar a model finds two captions, or two images: what it says about a pair besides the pair's own score."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32

from aoq.pipeline.search.problem import blocks
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.screens.entries import Entries, Knowledge

BLOCK_NUMBERS = 2**24
"""Of the vectors that are gathered at a time."""


def caption_likeness(entries: Entries, knowledge: Knowledge) -> Float32[np.ndarray, " entries"]:
    """The cosine of the caption and the most similar one of the image's own; -inf if it has none."""
    vectors, own = knowledge.captions, knowledge.captions_of
    assert vectors is not None
    found = np.full(len(entries.anchors), -np.inf, dtype=np.float32)
    for start, stop in blocks(len(found), max(1, BLOCK_NUMBERS // vectors.shape[1])):
        theirs = own.rows(entries.images[start:stop])
        scores = exact_scores(vectors[entries.captions[start:stop]], vectors, theirs.offsets, theirs.ids)
        there = np.flatnonzero(np.diff(theirs.offsets))
        if len(there):
            found[start + there] = np.maximum.reduceat(scores, theirs.offsets[there])
    return found


def image_likeness(entries: Entries, knowledge: Knowledge) -> Float32[np.ndarray, " entries"]:
    """The cosine of the image and the caption's own; -inf if it has none."""
    vectors = knowledge.images
    assert vectors is not None
    found = np.full(len(entries.anchors), -np.inf, dtype=np.float32)
    theirs = knowledge.image_of[entries.captions]
    paired = np.flatnonzero(theirs >= 0)
    for start, stop in blocks(len(paired), max(1, BLOCK_NUMBERS // vectors.shape[1])):
        some = paired[start:stop]
        each = np.arange(len(some) + 1)
        found[some] = exact_scores(vectors[entries.images[some]], vectors, each, theirs[some])
    return found
