"""A slow model's order of a shortlist, against loops over single pairs; and after a crash."""

import numpy as np
import pytest
import torch

from aoq.models.base import Code, MatchingModel
from aoq.pipeline.data.batches import PairData, TokenisedCaptions
from aoq.pipeline.data.folder import Split
from aoq.pipeline.mining import sizes
from aoq.pipeline.mining.rerank import Rescoring, Shortlist, rerank
from aoq.pipeline.search.positives import matching_pairs
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.table import read_table

IMAGES, CAPTIONS = 23, 61
DEPTHS, H = {"i2t": 14, "t2i": 8}, {"i2t": 6, "t2i": 3}


class Slow(MatchingModel):
    """Small whole numbers, so that a score is exact in any batch, and ties are many."""

    def __init__(self):
        super().__init__()
        self.pairs_scored = 0
        self.most_pairs = None

    def encode_images(self, images):
        return Code(images.features.sum(1))

    def encode_captions(self, captions):
        real = torch.arange(captions.words.shape[1]) < captions.lengths[:, None]
        return Code(torch.stack([((captions.words % 3 == n) & real).sum(1) for n in range(3)], dim=1).float())

    def similarity(self, images, captions):
        return images.vectors @ captions.vectors.T

    def pair_similarity(self, images, captions):
        if self.most_pairs is not None and self.pairs_scored + len(images) > self.most_pairs:
            raise KeyboardInterrupt
        self.pairs_scored += len(images)
        return (images.vectors * captions.vectors).sum(1)


@pytest.fixture
def job():
    rng = np.random.default_rng(3)
    image_of = np.concatenate([np.arange(IMAGES), rng.integers(0, IMAGES, CAPTIONS - IMAGES)]).astype(np.int32)
    image_of = rng.permutation(image_of)
    lengths = rng.integers(3, 9, CAPTIONS)
    tokens = TokenisedCaptions(rng.integers(1, 50, lengths.sum()).astype(np.int32), np.cumsum([0, *lengths]))
    features = rng.integers(-2, 3, (IMAGES, 2, 3)).astype(np.float32)
    split = Split("train", features, ["a"] * CAPTIONS, image_of, [str(row) for row in range(IMAGES)])
    captions = candidates(rng, [np.flatnonzero(image_of != row) for row in range(IMAGES)], DEPTHS["i2t"])
    images = candidates(rng, [np.flatnonzero(np.arange(IMAGES) != own) for own in image_of], DEPTHS["t2i"])
    captions[4, 5:], images[9, 2:] = -1, -1  # lists that are shorter than what is kept of them
    pairs = PairData(split, tokens)
    return Rescoring(Slow(), pairs, Shortlist(captions, images, matching_pairs(image_of)), H, 9, torch.device("cpu"))


def candidates(rng, negatives, depth):
    return np.stack([rng.permutation(rows)[:depth] for rows in negatives]).astype(np.int32)


def cut(monkeypatch):
    """Make units and tiles so small that every list crosses their borders."""
    for name, size in {"IMAGE_BLOCK": 11, "CAPTION_BLOCK": 23, "PAIR_TILE": 16, "SEARCH_BLOCK": 29}.items():
        monkeypatch.setattr(sizes, name, size)


def run(job, folder):
    rerank(job, provenance={"dataset": "d", "teacher": {}}, work=folder / "work", output=folder / "table")
    return read_table(folder / "table")


def score(job, image, caption):
    words = job.pairs.tokens.words[slice(*job.pairs.tokens.offsets[caption : caption + 2])]
    return sum(float(job.pairs.split.features[image, :, word % 3].sum()) for word in words)


def by_definition(job, direction, anchor, ids):
    """The listed candidates by score, falling, then by id; and all their scores."""
    scores = {
        int(row): score(job, anchor, row) if direction == "i2t" else score(job, row, anchor) for row in ids if row >= 0
    }
    return sorted(scores, key=lambda row: (-scores[row], row)), scores


@pytest.mark.parametrize("is_cut", [True, False])
def test_lists_are_the_shortlist_in_the_order_of_scores_each_computed_once(job, tmp_path, monkeypatch, is_cut):
    if is_cut:
        cut(monkeypatch)
    table, image_of = run(job, tmp_path), job.shortlist.positives[:, 0]
    for direction in ("i2t", "t2i"):
        for anchor, ids in enumerate(job.shortlist[direction]):
            expected, scores = by_definition(job, direction, anchor, ids)
            kept = expected[: H[direction]]
            padding = H[direction] - len(kept)
            lists = table[direction]
            assert lists.negative_ids[anchor].tolist() == kept + [-1] * padding
            np.testing.assert_array_equal(lists.scores[anchor], [*(scores[row] for row in kept), *[np.nan] * padding])
            own = np.flatnonzero(image_of == anchor) if direction == "i2t" else [image_of[anchor]]
            positives = by_definition(job, direction, anchor, own)[1].values()
            assert lists.positive_score[anchor] == min(positives)
    assert audit(tmp_path / "table") == []
    pairs = {(image, caption) for image, row in enumerate(job.shortlist.captions) for caption in row if caption >= 0}
    pairs |= {(image, caption) for caption, row in enumerate(job.shortlist.images) for image in row if image >= 0}
    pairs |= {(image, caption) for caption, image in enumerate(job.shortlist.positives[:, 0])}
    assert job.model.pairs_scored == len(pairs)


def test_recall_is_the_share_of_the_full_search_that_the_lists_have(job, tmp_path, monkeypatch):
    cut(monkeypatch)
    table, image_of = run(job, tmp_path), job.shortlist.positives[:, 0]
    for direction in ("i2t", "t2i"):
        shares = []
        for anchor in job.checked(direction):
            own = image_of == anchor if direction == "i2t" else np.arange(IMAGES) == image_of[anchor]
            negatives = np.flatnonzero(~own)
            best, scores = by_definition(job, direction, anchor, negatives)
            last = scores[best[H[direction] - 1]]
            listed = [row for row in table[direction].negative_ids[anchor] if row >= 0]
            shares.append(sum(scores[row] >= last for row in listed) / H[direction])
        about = table.manifest["directions"][direction]
        assert about["recall"] == pytest.approx(np.mean(shares), abs=1e-6)
        assert 0 < about["recall"] < 1
        assert (about["guarantee"], about["recall_anchors"]) == ("reranked", 9)


@pytest.mark.parametrize("most_pairs", [0, 500])
def test_an_interrupted_run_goes_on_to_the_same_table(job, tmp_path, monkeypatch, most_pairs):
    cut(monkeypatch)
    whole = run(job, tmp_path / "whole").manifest
    every, job.model.pairs_scored, job.model.most_pairs = job.model.pairs_scored, 0, most_pairs
    with pytest.raises(KeyboardInterrupt):
        run(job, tmp_path / "cut")
    assert not (tmp_path / "cut" / "table").exists()
    done = job.model.pairs_scored
    damaged = sorted((tmp_path / "cut" / "work").glob("pairs-*.unit"))[:1]
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-9])
    job.model.most_pairs = None
    assert run(job, tmp_path / "cut").manifest == whole
    blocks = [(images, captions) for images in job.shortlist.blocks("i2t") for captions in job.shortlist.blocks("t2i")]
    largest = max(len(job.shortlist.keys(*block)) for block in blocks)
    again = job.model.pairs_scored - every
    assert again <= (1 + len(damaged)) * largest
    assert done <= most_pairs


def test_a_teacher_that_gives_no_numbers_is_refused(job, tmp_path):
    job.pairs.split.features[5] = np.nan
    with pytest.raises(ValueError, match=r"similarity of image 5 and caption \d+ is nan; .* choose another teacher"):
        run(job, tmp_path)
    assert not (tmp_path / "table").exists()
