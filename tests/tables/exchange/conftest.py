"""A small mined table whose images have none to three captions, and what its rows go by."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.tables.exchange.outgoing import Names, Outgoing
from aoq.pipeline.tables.pairs import paired, positives_of
from aoq.pipeline.tables.table import read_table

IMAGES = 12
JPEG = b"\xff\xd8\xff\xe0"
IMAGE_OF = np.array([0, 1, 1, 2, 2, 2, *range(3, 11), -1, 4, 4, 5], dtype=np.int32)  # none of image 11


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    rng = np.random.default_rng(4)
    images = rng.normal(size=(IMAGES, 6)).astype(np.float32)
    captions = rng.normal(size=(len(IMAGE_OF), 6)).astype(np.float32)
    captions[5:8] = captions[4]
    folder = tmp_path_factory.mktemp("world")
    np.save(folder / "images.npy", images)
    np.save(folder / "captions.npy", captions)
    problem = Problem(images, captions, IMAGE_OF, 6, 4)
    given = {"search": "faiss-flat", "provenance": {"dataset": "d"}}
    mine(problem, work=folder / "work", output=folder / "table", **given)
    texts = [f"caption {row}, “quoted” and\tparted" for row in range(len(IMAGE_OF))]
    texts[3] = "caption 3 and\ra return"
    (folder / "captions.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    ids = [f"{row}.jpg" for row in range(IMAGES)]
    files = [str(folder / "pictures" / name) for name in ids]
    (folder / "pictures").mkdir()
    for row, file in enumerate(files):
        Path(file).write_bytes(JPEG + bytes([row]))
    described = [f"a picture of {row}" for row in range(IMAGES)]
    rows = [str(row) for row in range(len(texts))]
    return SimpleNamespace(
        folder=folder,
        table=read_table(folder / "table"),
        images=images,
        captions=captions,
        texts=texts,
        ids=ids,
        described=described,
        files=files,
        names={"i2t": Names(ids, described, noun="image"), "t2i": Names(rows, texts)},
        pictures={"i2t": Names(ids, files, are_pictures=True, noun="image"), "t2i": Names(rows, texts)},
    )


@pytest.fixture
def outgoing(world):
    """One direction; `change` alters ids and scores first, as a view that leaves some out would."""

    def make(direction, depth=4, *, scored=False, change=None, cut=5, pictures=False, packed=False, other=None):
        lists = world.table[direction]
        ids, scores = lists.negative_ids.copy(), lists.scores.copy()
        if change is not None:
            change(ids, scores)
        vectors = (world.images, world.captions) if direction == "i2t" else (world.captions, world.images)
        anchors, candidates = ("i2t", "t2i") if direction == "i2t" else ("t2i", "i2t")
        changed = NegativeLists(ids, scores, lists.positive_score).keep(ids >= 0)
        chunks = [changed[start : start + cut] for start in range(0, len(lists), cut)]
        names = world.pictures if pictures else world.names
        return Outgoing(
            direction,
            chunks,
            names[anchors],
            names[candidates],
            positives_of(direction, paired(IMAGE_OF), len(lists)),
            depth,
            scored,
            vectors if scored else None,
            packed,
            other,
        )

    return make


@pytest.fixture
def groups(world):
    """The definition: of every anchor its positives and the head of its list, each with its exact score."""

    def list_groups(direction, depth=4, change=None):
        lists = world.table[direction]
        ids, scores = lists.negative_ids.copy(), lists.scores.copy()
        if change is not None:
            change(ids, scores)
        found = []
        for anchor in range(len(lists)):
            if direction == "i2t":
                own = [caption for caption, image in enumerate(IMAGE_OF) if image == anchor]
            else:
                own = [IMAGE_OF[anchor]] if IMAGE_OF[anchor] >= 0 else []
            pairs = [(anchor, row) if direction == "i2t" else (row, anchor) for row in own]
            own_scores = [
                np.float32(world.images[image].astype(np.float64) @ world.captions[caption]) for image, caption in pairs
            ]
            real = [(row, score) for row, score in zip(ids[anchor], scores[anchor], strict=True) if row >= 0][:depth]
            found.append((anchor, list(zip(own, own_scores, strict=True)), real))
        return found

    return list_groups
