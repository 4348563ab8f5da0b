"""Lists read by row groups, against the whole table, on random small ones."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.browse.lists import ListFile
from aoq.pipeline.search.lists import NegativeLists, to_arrow
from aoq.pipeline.tables.files import read_unverified
from aoq.pipeline.tables.writing import list_writer

H = 6


def write_lists(folder, rows, candidates, groups, rng, sources=False):
    ids = np.stack([rng.choice(candidates, H, replace=False) for _ in range(rows)]).astype(np.int32)
    ids[rng.random(rows) < 0.3, H // 2 :] = -1
    scores = np.where(ids < 0, np.nan, -np.sort(-rng.random((rows, H)), axis=1)).astype(np.float32)
    bits = rng.integers(0, 4, (rows, H)).astype(np.uint8) if sources else None
    lists = to_arrow(NegativeLists(ids, scores, rng.random(rows).astype(np.float32), bits))
    footer = {"h": H, "sources": ["one", "two"]} if sources else {"h": H}
    with list_writer(folder / "i2t.parquet", footer) as writer:
        for start, stop in zip([0, *groups], [*groups, rows], strict=True):
            writer.write_table(lists.slice(start, stop - start).combine_chunks())


@pytest.mark.parametrize("groups", [[], [1], [7, 8, 20]])
@pytest.mark.parametrize("sources", [False, True])
def test_lists_and_listings_are_those_of_the_whole_table(tmp_path, groups, sources):
    rng = np.random.default_rng(len(groups))
    write_lists(tmp_path, 30, 12, groups, rng, sources)
    manifest = {"directions": {"i2t": {"sources": ["one", "two"]} if sources else {}}}
    file, whole = ListFile(tmp_path, "i2t", manifest, None), read_unverified(tmp_path / "i2t.parquet")
    assert pq.ParquetFile(tmp_path / "i2t.parquet").num_row_groups == len(groups) + 1
    assert (len(file), file.h) == (30, H)
    for anchor in range(30):
        found = file[anchor]
        assert found.anchor == anchor
        assert np.array_equal(found.negative_ids, whole.negative_ids[anchor])
        assert np.array_equal(found.lists.scores[0], whole.scores[anchor], equal_nan=True)
        assert found.lists.positive_score == whole.positive_score[anchor]
        assert found.judged is None
        assert (found.lists.sources is None) == (whole.sources is None)
        assert found.lists.sources is None or np.array_equal(found.lists.sources[0], whole.sources[anchor])
    for candidate in range(13):  # the last is nobody's
        expected = []
        for place in range(H):
            for anchor in range(30):
                if whole.negative_ids[anchor, place] == candidate:
                    expected.append((anchor, place, whole.scores[anchor, place]))
        found = file.listings(candidate)
        assert list(zip(found["anchor"], found["place"], found["score"], strict=True)) == expected


def test_only_the_row_group_of_an_anchor_is_read(tmp_path):
    write_lists(tmp_path, 30, 12, [10, 20], np.random.default_rng(0))
    path = tmp_path / "i2t.parquet"
    file = ListFile(tmp_path, "i2t", {"directions": {"i2t": {}}}, None)
    column = pq.ParquetFile(path).metadata.row_group(2).column(1)
    content = bytearray(path.read_bytes())
    content[column.data_page_offset + column.total_compressed_size - 3] ^= 255
    path.write_bytes(content)
    assert file[19].anchor == 19
    for read in (lambda: file[20], lambda: file.listings(3)):
        with pytest.raises(ValueError, match="damaged"):
            read()
