"""Ranks come back as they were written; others are refused."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.evaluation.ranks import read_ranks, write_ranks
from aoq.pipeline.evaluation.retrieval import Ranks

RANKS = Ranks(np.array([0, 5, 2]), np.array([2, 0, 1, 1, 0, 2]))


def test_they_come_back(tmp_path):
    write_ranks(tmp_path / "ranks.parquet", RANKS)
    found = read_ranks(tmp_path / "ranks.parquet", images=3, captions=6)
    assert (found.i2t.tolist(), found.t2i.tolist()) == (RANKS.i2t.tolist(), RANKS.t2i.tolist())


@pytest.mark.parametrize(("images", "captions"), [(2, 6), (3, 5), (6, 3)])
def test_those_of_other_queries_are_refused(tmp_path, images, captions):
    write_ranks(tmp_path / "ranks.parquet", RANKS)
    with pytest.raises(ValueError, match=f"it does not have {images} images and {captions} captions"):
        read_ranks(tmp_path / "ranks.parquet", images=images, captions=captions)


@pytest.mark.parametrize("i2t", [[0, 6, 1], [0, -1, 1]])
def test_ranks_beyond_the_candidates_are_refused(tmp_path, i2t):
    write_ranks(tmp_path / "ranks.parquet", Ranks(np.array(i2t), RANKS.t2i))
    with pytest.raises(ValueError, match="it does not have 3 images and 6 captions"):
        read_ranks(tmp_path / "ranks.parquet", images=3, captions=6)


def test_a_damaged_file_is_named(tmp_path):
    write_ranks(tmp_path / "ranks.parquet", RANKS)
    stored = bytearray((tmp_path / "ranks.parquet").read_bytes())
    stored[8] ^= 1
    (tmp_path / "ranks.parquet").write_bytes(stored)
    with pytest.raises(ValueError, match=r"ranks\.parquet is damaged or not the ranks on dev of a training"):
        read_ranks(tmp_path / "ranks.parquet", images=3, captions=6)
