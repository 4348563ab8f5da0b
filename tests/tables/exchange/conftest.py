"""A small mined table whose images have none to three captions, and what its rows go by."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import matching_pairs
from aoq.pipeline.tables.exchange.outgoing import Names, Outgoing
from aoq.pipeline.tables.pairs import SIDES, group_positives

IMAGES = 12
IMAGE_OF = np.array([0, 1, 1, 2, 2, 2, *range(3, 11), -1, 4, 4, 5], dtype=np.int32)  # none of image 11


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    rng, folder = np.random.default_rng(4), tmp_path_factory.mktemp("world")
    images = rng.normal(size=(IMAGES, 6)).astype(np.float32)
    captions = rng.normal(size=(len(IMAGE_OF), 6)).astype(np.float32)
    captions[5:8] = captions[4]
    texts = [f"caption {row}, “quoted” and\tparted" for row in range(len(IMAGE_OF))]
    texts[3] = "caption 3 and\ra return"
    ids, rows = [f"{row}.jpg" for row in range(IMAGES)], [str(row) for row in range(len(texts))]
    files = [folder / name for name in ids]
    for row, file in enumerate(files):
        file.write_bytes(bytes([row]))
    described, files = [f"a picture of {row}" for row in range(IMAGES)], [str(file) for file in files]
    return SimpleNamespace(
        table=hard_negatives(images, captions, IMAGE_OF, h=(6, 4), metric="dot"),
        vectors={"images": images, "captions": captions},
        texts=texts,
        files=files,
        names={"images": Names(ids, described, noun="image"), "captions": Names(rows, texts)},
        pictures={"images": Names(ids, files, are_pictures=True, noun="image"), "captions": Names(rows, texts)},
    )


@pytest.fixture
def changed(world):
    """The lists of a direction; `change` alters ids and scores first, as a view that leaves some out would."""

    def make(direction, change=None):
        lists = world.table[direction]
        ids, scores = lists.negative_ids.copy(), lists.scores.copy()
        if change is not None:
            change(ids, scores)
        return NegativeLists(ids, scores, lists.positive_score).keep(ids >= 0)

    return make


@pytest.fixture
def outgoing(world, changed):
    """One direction, in blocks of 5 anchors."""

    def make(direction, depth=4, *, scored=False, change=None, pictures=False, packed=False, other=None):
        lists, sides = changed(direction, change), SIDES[direction]
        chunks = [lists[start : start + 5] for start in range(0, len(lists), 5)]
        names = [(world.pictures if pictures else world.names)[side] for side in sides]
        names = [replace(side, packed=packed and side.are_pictures) for side in names]
        vectors = tuple(world.vectors[side] for side in sides) if scored else None
        own = group_positives(direction, matching_pairs(IMAGE_OF), len(lists))
        return Outgoing(direction, chunks, *names, own, depth, scored, vectors, other)

    return make


@pytest.fixture
def groups(world, changed):
    """The definition: of every anchor its positives and the head of its list, each with its exact score."""

    def list_groups(direction, depth=4, change=None):
        lists, found = changed(direction, change), []
        images, captions = world.vectors["images"].astype(np.float64), world.vectors["captions"]
        for anchor in range(len(lists)):
            is_own = anchor == IMAGE_OF if direction == "i2t" else np.arange(IMAGES) == IMAGE_OF[anchor]
            own = np.flatnonzero(is_own).tolist()
            pairs = [(anchor, row) if direction == "i2t" else (row, anchor) for row in own]
            own_scores = [np.float32(images[image] @ captions[caption]) for image, caption in pairs]
            listed = zip(lists.negative_ids[anchor, :depth].tolist(), lists.scores[anchor], strict=False)
            found.append((anchor, list(zip(own, own_scores, strict=True)), [one for one in listed if one[0] >= 0]))
        return found

    return list_groups
