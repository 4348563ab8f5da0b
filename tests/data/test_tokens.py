from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aoq.pipeline.data.tokens import TokenisedCaptions
from aoq.pipeline.data.vocabulary import SPECIAL_WORDS, Vocabulary

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


@pytest.mark.parametrize("kept", [0, 10, 200, -10])
def test_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "tokens.npz"
    TokenisedCaptions.build(CAPTIONS, VOCABULARY).save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"damaged or not .* tokenise again"):
        TokenisedCaptions.load(path)


def test_wrong_arrays_captions_and_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npz"
    np.savez(path, words=np.zeros(3))
    with pytest.raises(ValueError, match=r"damaged or not .* tokenise again"):
        TokenisedCaptions.load(path)
    for words in (np.array([1, 4, 2]), np.array([1, -4, 2], np.int32), np.zeros(3, object)):
        np.savez(path, words=words, offsets=np.array([0, 3]))
        with pytest.raises(ValueError, match=r"damaged or not .* tokenise again"):
            TokenisedCaptions.load(path)
    np.savez_compressed(path, words=np.zeros(10**6, np.int32), offsets=np.array([0, 10**6]))
    with pytest.raises(ValueError, match="words claims 4,000,128 bytes, more than the file has"):
        TokenisedCaptions.load(path)
    np.save(path.with_suffix(".npy"), np.zeros(3))
    with pytest.raises(ValueError, match=r"damaged or not .* tokenise again"):
        TokenisedCaptions.load(path.with_suffix(".npy"))
    with pytest.raises(ValueError, match=r"caption 2 \(' '\) has no word"):
        TokenisedCaptions.build(["a dog", " "], VOCABULARY)
    for row in (-1, 3):
        with pytest.raises(IndexError, match=r"0\.\.2"):
            TokenisedCaptions.build(CAPTIONS, VOCABULARY).gather(np.array([0, row]))
    with pytest.raises(ValueError, match="from 0 to the number of words, 3"):
        TokenisedCaptions(np.array([1, 4, 2], dtype=np.int32), np.array([0, 2]))
