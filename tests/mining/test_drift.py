"""A model's own lists of sampled anchors beside a table's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from aoq.models import build_model
from aoq.pipeline.data.batches import PairData
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import Vocabulary
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.mining.drift import measure_drift
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.table import NegativeTable

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    write_demo_world(folder, images=140, dev_images=10, seed=0)
    split = open_split(folder, "train")
    return PairData(split, TokenisedCaptions.build(split.captions, Vocabulary.build(split.captions, min_count=1)), None)


def model_of(pairs, name, seed):
    torch.manual_seed(seed)
    sizes = {"feature_size": pairs.split.features.shape[2], "vocabulary_size": int(pairs.tokens.words.max()) + 1}
    return build_model(name, embedding_size=16, word_size=8, **sizes)


def lists_of(scores, own, h):
    """Sort every negative by score, then by row: the definition."""
    ids = np.array(
        [
            [c for c in np.lexsort((np.arange(len(row)), -row)) if not mine[c]][:h]
            for row, mine in zip(scores, own, strict=True)
        ]
    )
    lowest = np.where(own, scores, np.inf).min(axis=1)
    return NegativeLists(ids.astype(np.int32), np.take_along_axis(scores, ids, axis=1), lowest.astype(np.float32))


def table_of(model, pairs, h_captions, h_images):
    scores = similarity_matrix(model, pairs, CPU)
    own = pairs.split.image_of == np.arange(140)[:, None]
    return NegativeTable(lists_of(scores, own, h_captions), lists_of(scores.T, own.T, h_images), {})


@pytest.mark.parametrize("name", ["vsepp", "scan"])
def test_a_model_agrees_with_its_own_table(pairs, name):
    model = model_of(pairs, name, seed=0)
    found = measure_drift(model, pairs, table_of(model, pairs, 40, 8), CPU, anchors=30)
    for direction, depth in (("i2t", 40), ("t2i", 8)):
        one = found[direction]
        assert (one.anchors, one.lists.depth) == (30, depth)
        assert one.lists.overlap > 0.99  # similarities in other tiles differ in the last bits
        assert one.above_positive == pytest.approx(one.above_positive_then, abs=0.01)


def test_it_is_what_comparing_whole_tables_gives(pairs):
    """With all anchors, drift compares the other model's own table with the first one's."""
    one, other = (table_of(model_of(pairs, "vsepp", seed), pairs, 40, 8) for seed in (0, 1))
    found = measure_drift(model_of(pairs, "vsepp", 1), pairs, one, CPU, anchors=1000, depth=6)
    for direction in ("i2t", "t2i"):
        a, b = one[direction].negative_ids[:, :6], other[direction].negative_ids[:, :6]
        overlap = [len({*x} & {*y}) / 6 for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        assert 0.01 < np.mean(overlap) < 0.9
        assert found[direction].lists.overlap == pytest.approx(np.mean(overlap), abs=0.002)
        assert found[direction].lists.most_changed[0][1] == pytest.approx(min(overlap), abs=1e-6)


def test_copies_are_no_negatives(pairs):
    """Lists of all negatives that there are: the other 120 images and their captions."""
    split = replace(pairs.split, identity=np.arange(140, dtype=np.int32) // 20)
    copied, model = PairData(split, pairs.tokens), model_of(pairs, "vsepp", 0)
    scores = similarity_matrix(model, copied, CPU)
    own = split.image_of[None] // 20 == np.arange(140)[:, None] // 20
    others = int((~own[0]).sum())
    assert all((~mine).sum() == others for mine in own)
    table = NegativeTable(lists_of(scores, own, others), lists_of(scores.T, own.T, 120), {})
    for drift in measure_drift(model, copied, table, CPU, anchors=30).values():
        assert drift.lists.overlap == 1


def test_a_depth_beyond_the_lists_is_refused(pairs):
    model = model_of(pairs, "vsepp", 0)
    with pytest.raises(ValueError, match="depth = 9, but the t2i lists hold 8; give 1 to 8"):
        measure_drift(model, pairs, table_of(model, pairs, 40, 8), CPU, anchors=5, depth=9)
