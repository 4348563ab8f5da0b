"""A tiny made-up world to train on in a second: twelve kinds of scenes, three captions an image."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.training.drawable import Drawable
from aoq.pipeline.training.sampler import Sampler

IMAGES, EACH, WORDS = 16, 3, 24


@pytest.fixture
def pairs():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(IMAGES, 4, 6)).astype(np.float16)
    image_of = np.repeat(np.arange(IMAGES, dtype=np.int32), EACH)
    sentences = [[1, 4 + image % 12, *rng.integers(4, WORDS, rng.integers(1, 5)).tolist(), 2] for image in image_of]
    offsets = np.concatenate([[0], np.cumsum([len(words) for words in sentences])]).astype(np.int64)
    tokens = TokenisedCaptions(np.concatenate(sentences).astype(np.int32), offsets)
    corners = rng.uniform(size=(2, IMAGES, 4, 2))
    boxes = np.concatenate([corners.min(0), corners.max(0)], axis=2).astype(np.float32)
    texts, ids = [str(words) for words in sentences], [str(i) for i in range(IMAGES)]
    split = Split("train", features, texts, image_of, ids, boxes)
    return PairData(split, tokens)


@pytest.fixture
def sampler(pairs):
    split = pairs.split
    rng = np.random.default_rng(1)
    i2t = np.stack([rng.permutation(np.flatnonzero(split.image_of != m))[:8] for m in range(IMAGES)])
    t2i = np.stack([rng.permutation(np.delete(np.arange(IMAGES), m))[:4] for m in split.image_of])
    scored = [
        Drawable(ids.astype(np.int32), scores=rng.random(ids.shape, "f4"), positive_score=rng.random(len(ids), "f4"))
        for ids in (i2t, t2i)
    ]
    return Sampler(*scored, split.image_of)
