"""Copies of one photograph are never each other's negatives, neither in mining nor in training."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline.data.check import examine_folder
from aoq.pipeline.data.folder import first_images, open_split, split_fingerprint
from aoq.pipeline.search.positives import matching_pairs
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training.drawable import Drawable
from aoq.pipeline.training.sampler import Sampler
from tests.stages.conftest import chain_of, make_stage


@pytest.fixture
def folder(tmp_path):
    """Twelve images of two captions; images 2 and 7 are image 0 again."""
    rng = np.random.default_rng(0)
    for split in ("train", "dev"):
        np.save(tmp_path / f"{split}_ims.npy", rng.normal(size=(12, 2, 3)).astype(np.float32))
        (tmp_path / f"{split}_caps.txt").write_text("".join(f"caption {n}\n" for n in range(24)))
        np.save(tmp_path / f"{split}_identity.npy", np.array([0, 1, 0, 3, 4, 5, 6, 0, 8, 9, 10, 11]))
    return tmp_path


def test_a_split_has_its_identities(folder):
    before = split_fingerprint(folder, "train")
    split = open_split(folder, "train")
    assert split.identity.tolist()[:8] == [0, 1, 0, 2, 3, 4, 5, 0]
    assert split.positives[:6].tolist() == [[0, 0], [2, 0], [7, 0], [0, 1], [2, 1], [7, 1]]
    assert len(split.positives) == 18 + 3 * 6
    assert first_images(split, 3).positives[-2:].tolist() == [[0, 5], [2, 5]]
    assert examine_folder(folder).flaws == []
    np.save(folder / "train_identity.npy", np.arange(12))
    assert split_fingerprint(folder, "train") != before
    for wrong in (np.zeros(11, int), np.zeros((12, 1), int), np.zeros(12)):
        np.save(folder / "train_identity.npy", wrong)
        with pytest.raises(ValueError, match=r"train_identity.npy: needs a whole number per image"):
            open_split(folder, "train")
        assert [flaw.file for flaw in examine_folder(folder).flaws] == ["train_identity.npy"]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=8), st.data())
def test_pairs_by_definition(identity, drawn):
    images = len(identity)
    image_of = drawn.draw(st.lists(st.integers(0, images - 1), max_size=10))
    result = matching_pairs(np.array(image_of, np.int32), np.array(identity, np.int32)).tolist()
    every = [[i, c] for c, own in enumerate(image_of) for i in range(images) if identity[i] == identity[own]]
    assert result == every


def test_mined_lists_hold_no_copy(folder, tmp_path):
    depths = "mining.h_captions=18, mining.h_images=9, first_round.batch_size=6"
    chain = chain_of(f'dataset.folder="{folder}", dataset.min_count=1, {depths}', root=tmp_path / "artifacts")
    for stage in ("dataset", "first_round", "embeddings", "hard_negatives"):
        make_stage(chain, stage)
    table = read_table(chain["hard_negatives"].path / "table")
    copies = {0, 2, 7}
    theirs = {caption for image in copies for caption in (2 * image, 2 * image + 1)}
    for image in copies:
        assert set(table.i2t.negative_ids[image].tolist()) == set(range(24)) - theirs
    for caption in theirs:
        assert set(table.t2i.negative_ids[caption].tolist()) == set(range(12)) - copies
    assert (table.i2t.negative_ids[1] >= 0).all()


def test_answers_are_those_of_copies_too(folder):
    split = open_split(folder, "train")
    is_right = split.identity[:, None] == split.identity[split.image_of]
    for direction, rows in (("i2t", is_right), ("t2i", is_right.T)):
        for query, right in enumerate(rows):
            assert split.find_answers(direction, query).tolist() == np.flatnonzero(right).tolist()


def test_offline_negatives_of_copies_are_a_true_pair():
    """The offline caption is of image 2, the offline image is its copy 0."""
    i2t = Drawable(np.array([[2], [2], [1]], np.int32))
    t2i = Drawable(np.array([[2], [0], [1]], np.int32))
    image_of, captions = np.arange(3, dtype=np.int32), np.array([1], np.int32)
    for identity, expected in ((None, False), (np.array([0, 1, 0], np.int32), True)):
        sampler = Sampler(i2t, t2i, image_of, identity=identity)
        assert sampler.draw(captions, np.random.default_rng(0)).corresponding.tolist() == [expected]
