"""Pairs that captions keep of blocks of images, merged, against a slow definition."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
import pytest

from aoq.pipeline.search.kept_pairs import merged_heads, pairs_table
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.search.tiles import Keeper

IMAGES, CAPTIONS, BLOCK, H = 90, 23, 40, 3


@pytest.fixture
def problem():
    images, captions = np.ones((IMAGES, 2), np.float32), np.ones((CAPTIONS, 2), np.float32)
    return Problem(images, captions, np.arange(CAPTIONS, dtype=np.int32), H, H)


@pytest.fixture
def scores():
    """Few numbers, so that there are ties, also at limits."""
    return np.random.default_rng(0).integers(0, 9, (CAPTIONS, IMAGES)).astype(np.float32)


def limits_of(block):
    """Blocks may differ in their limits; one block kept too many pairs of caption 5."""
    limits = np.full(CAPTIONS, 4 + block, np.float32)
    limits[5] = np.inf if block == 1 else 4
    return limits


def table_of(block, scores):
    start, stop = BLOCK * block, min(IMAGES, BLOCK * (block + 1))
    keeper = Keeper(limits_of(block), IMAGES)
    images, captions = np.meshgrid(np.arange(stop - start, dtype=np.int32), np.arange(CAPTIONS, dtype=np.int32))
    found = scores[:, start:stop]
    for part in (slice(0, 9), slice(9, None)):
        reached = found[:, part] >= keeper.limits[:, None]
        keeper.add(captions[:, part][reached], images[:, part][reached], found[:, part][reached])
    return pairs_table(keeper, start)


def test_a_table_is_sorted_by_caption_and_its_first_rows_tell_limits(scores):
    captions, images, found = (column.to_numpy() for column in table_of(1, scores).columns)
    assert (np.diff(captions) >= 0).all()
    first = np.searchsorted(captions, np.arange(CAPTIONS))
    assert (images[first] == -1).all()
    assert found[first].tolist() == limits_of(1).tolist()
    others = images >= 0
    assert (found[others] == scores[captions[others], images[others]]).all()
    assert others.sum() == (scores[:, BLOCK : 2 * BLOCK] >= limits_of(1)[:, None]).sum()


@pytest.mark.parametrize(("start", "stop"), [(0, CAPTIONS), (4, 11), (22, 23)])
def test_merged_they_are_the_best_at_or_above_the_highest_limit(problem, scores, start, stop):
    blocks = range(-(-IMAGES // BLOCK))
    tables = [table_of(block, scores) for block in blocks]
    within = [table.filter((pc.field("caption") >= start) & (pc.field("caption") < stop)) for table in tables]
    heads = merged_heads(problem["t2i"].between(start, stop), start, within)
    highest = np.max([limits_of(block) for block in blocks], axis=0)
    for row, caption in enumerate(range(start, stop)):
        reached = [image for image in range(IMAGES) if scores[caption, image] >= highest[caption] and image != caption]
        best = sorted(reached, key=lambda image: (-scores[caption, image], image))[:H]
        assert heads.ids[row].tolist() == best + [-1] * (H - len(best))
        assert heads.scores[row, : len(best)].tolist() == [scores[caption, image] for image in best]
        below = highest[caption] if caption == 5 else np.nextafter(highest[caption], np.float32(-np.inf))
        assert heads.bound[row] == below  # of caption 5 infinity: any pair may be missing
