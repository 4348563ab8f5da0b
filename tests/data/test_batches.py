"""Captions as tokens, and batches of them: every caption once an epoch, tensors of the right rows."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline import reading
from aoq.pipeline.data.batches import PairData, TokenisedCaptions, epoch_order, step_rng, steps_per_epoch
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.vocabulary import SPECIAL_WORDS, Vocabulary


@pytest.mark.parametrize(("captions", "batch", "steps"), [(10, 5, 2), (11, 5, 2), (12, 5, 3), (5, 8, 1), (1, 8, 0)])
def test_a_last_pair_alone_is_left_out(captions, batch, steps):
    assert steps_per_epoch(captions, batch) == steps


def test_orders_are_permutations_of_their_own():
    orders = [tuple(epoch_order(50, seed=s, epoch=e)) for s, e in [(1, 0), (1, 0), (1, 1), (2, 0)]]
    assert sorted(orders[0]) == list(range(50))
    assert [orders.index(order) for order in orders] == [0, 0, 2, 3]


def test_steps_draw_by_numbers_of_their_own():
    draws = {tuple(step_rng(seed=s, epoch=e, step=t).random(3)) for s in (0, 1) for e in (0, 1) for t in (0, 1)}
    assert len(draws) == 8
    assert tuple(step_rng(seed=1, epoch=1, step=0).random(3)) in draws
    assert draws.isdisjoint({tuple(np.random.default_rng(order).random(3)) for order in np.ndindex(2, 2)})


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_tensors_hold_the_rows_asked_for(dtype):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(5, 4, 3)).astype(dtype)
    mask = rng.random((5, 4)) < 0.5
    boxes = rng.random((5, 4, 4)).astype(np.float32)
    image_of = np.array([0, 1, 2, 3, 4, 4], dtype=np.int32)
    tokens = TokenisedCaptions(np.arange(18, dtype=np.int32) + 1, np.arange(0, 19, 3))
    split = Split("train", features, ["a"] * 6, image_of, list("abcde"), boxes, mask)
    images = PairData(split, tokens, max_regions=3).images(np.array([3, 0, 3])).to(torch.device("cpu"))
    assert images.features.dtype == torch.float32
    np.testing.assert_array_equal(images.features.numpy(), features[[3, 0, 3], :3].astype(np.float32))
    np.testing.assert_array_equal(images.mask.numpy(), mask[[3, 0, 3], :3])
    np.testing.assert_array_equal(images.boxes.numpy(), boxes[[3, 0, 3], :3])
    captions = PairData(split, tokens).captions(np.array([5, 1]))
    assert captions.words.tolist() == [[16, 17, 18], [4, 5, 6]]
    assert captions.lengths.tolist() == [3, 3]


def test_a_grid_is_never_cut():
    """Its cells have no order of importance: the first 24 of 49 are the upper half of the picture."""
    y, x = (part.reshape(-1) for part in np.mgrid[:7, :7])
    boxes = np.stack([x, y, x + 1, y + 1], axis=1)[None].repeat(2, axis=0).astype(np.float32) / 7
    for order, read in ((np.arange(49), 49), (np.random.default_rng(0).permutation(49), 24)):
        split = Split(
            "train", np.zeros((2, 49, 3)), ["a"] * 2, np.arange(2, dtype=np.int32), ["0", "1"], boxes[:, order]
        )
        tokens = TokenisedCaptions(np.ones(2, dtype=np.int32), np.arange(3))
        images = PairData(split, tokens, max_regions=24).images(np.array([1]))
        assert images.features.shape[1] == images.boxes.shape[1] == read


VOCABULARY = Vocabulary((*SPECIAL_WORDS, "a", "dog", "cat", "."))
CAPTIONS = ["A dog.", "a cat and a dog", "cat"]


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12), picks=st.lists(st.integers(0, 10**6), max_size=20))
def test_gather_is_the_loop(lengths: list[int], picks: list[int]) -> None:
    offsets = np.concatenate([[0], np.cumsum(np.array(lengths) + 2)])
    tokens = TokenisedCaptions(np.arange(1, offsets[-1] + 1, dtype=np.int32), offsets)
    rows = np.array([pick % len(lengths) for pick in picks], dtype=np.int64)

    ids, own_lengths = tokens.gather(rows)

    longest = max((lengths[row] + 2 for row in rows), default=0)
    expected = np.zeros((len(rows), longest), dtype=np.int64)
    for b, row in enumerate(rows):
        for w in range(lengths[row] + 2):
            expected[b, w] = tokens.words[offsets[row] + w]
    np.testing.assert_array_equal(ids, expected)
    assert ids.dtype == own_lengths.dtype == np.int64
    assert own_lengths.tolist() == [lengths[row] + 2 for row in rows]


def test_captions_of_unknown_words_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tokens = TokenisedCaptions.build(["zebra stripes", "a dog", "zebra"], VOCABULARY)
    assert tokens.gather(np.array([0]))[0].tolist() == [[1, 3, 3, 2]]
    assert "2 of 3 captions" in caplog.text
    assert "[1, 3]" in caplog.text


def test_saved_tokens_are_read_back(tmp_path: Path) -> None:
    tokens = TokenisedCaptions.build(CAPTIONS, VOCABULARY)
    tokens.save(tmp_path / "tokens.npz")
    tokens.save(tmp_path / "again.npz")
    loaded = TokenisedCaptions.load(tmp_path / "tokens.npz")
    np.testing.assert_array_equal(loaded.words, tokens.words)
    np.testing.assert_array_equal(loaded.offsets, tokens.offsets)
    assert (tmp_path / "tokens.npz").read_bytes() == (tmp_path / "again.npz").read_bytes()


def test_cut_files_wrong_arrays_captions_and_rows_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tokens.npz"
    TokenisedCaptions.build(CAPTIONS, VOCABULARY).save(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"damaged or not .* tokenise again"):
        TokenisedCaptions.load(path)
    np.savez(path, words=np.zeros(3))
    with pytest.raises(ValueError, match=r"damaged or not .* tokenise again"):
        TokenisedCaptions.load(path)
    for words in (np.array([1, 4, 2]), np.array([1, -4, 2], np.int32), np.zeros(3, object)):
        np.savez(path, words=words, offsets=np.array([0, 3]))
        with pytest.raises(ValueError, match=r"damaged or not .* tokenise again"):
            TokenisedCaptions.load(path)
    np.savez_compressed(path, words=np.zeros(10**6, np.int32), offsets=np.array([0, 10**6]))
    assert len(TokenisedCaptions.load(path).words) == 10**6
    monkeypatch.setattr(reading, "MOST_FILE_BYTES", 10**6)
    with pytest.raises(ValueError, match="words unpacks to 4,000,128 bytes, but at most 1,000,000 are read"):
        TokenisedCaptions.load(path)
    with pytest.raises(ValueError, match=r"caption 2 \(' '\) has no word"):
        TokenisedCaptions.build(["a dog", " "], VOCABULARY)
    for row in (-1, 3):
        with pytest.raises(IndexError, match=r"0\.\.2"):
            TokenisedCaptions.build(CAPTIONS, VOCABULARY).gather(np.array([0, row]))
    with pytest.raises(ValueError, match="from 0 to the number of words, 3"):
        TokenisedCaptions(np.array([1, 4, 2], dtype=np.int32), np.array([0, 2]))
