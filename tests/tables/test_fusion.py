"""Fused lists against loops over anchors, candidates and members, from the formulas' sentences."""

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.positives import matching_pairs
from aoq.pipeline.tables import fusion, writing
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.fusion import by_rank, by_score, fuse, fuse_tables
from aoq.pipeline.tables.statistics import describe
from aoq.pipeline.tables.table import read_table
from tests.mining.conftest import world_of_pairs

IMAGE_OF = np.repeat(np.arange(30, dtype=np.int32), 3)
NAMES = ["one", "two", "three"]


def share(positives, score):
    """The fraction of a member's positive pairs whose score is at most the given one."""
    return sum(positive <= score for positive in positives) / len(positives)


def fused_by_definition(method, members, positives, weights, anchor, h):
    found = []
    rows = [[row for row in lists.negative_ids[anchor].tolist() if row >= 0] for lists in members]
    for candidate in sorted({row for listed in rows for row in listed}):
        total, bits = 0.0, 0
        for bit, (lists, listed) in enumerate(zip(members, rows, strict=True)):
            scores = lists.scores[anchor].tolist()
            if candidate in listed:
                bits |= 1 << bit
                rank = listed.index(candidate) + 1
                value = 1 / (60 + rank) if method == "rank" else share(positives[bit], scores[rank - 1])
            elif method == "rank" or not listed:
                value = 0.0
            else:
                value = share(positives[bit], scores[len(listed) - 1])
            total += weights[bit] * value
        found.append((np.float32(total), candidate, bits))
    found.sort(key=lambda entry: (-entry[0], entry[1]))
    return found[:h]


def check(method, members, positives, weights, fused, h):
    assert fused.sources is not None
    for anchor in range(len(members[0])):
        expected = fused_by_definition(method, members, positives, weights, anchor, h)
        padding = h - len(expected)
        scores, ids, sources = zip(*expected, strict=True) if expected else ((), (), ())
        assert fused.negative_ids[anchor].tolist() == [*ids, *[-1] * padding]
        np.testing.assert_array_equal(fused.scores[anchor], [*scores, *[np.nan] * padding])
        assert fused.sources[anchor].tolist() == [*sources, *[0] * padding]


@st.composite
def worlds(draw):
    """Members with few different scores, so with ties, and with rows of any length."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    anchors, candidates = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    members = []
    for _ in range(draw(st.integers(2, 4))):
        h = draw(st.integers(1, candidates))
        ids, scores = np.full((anchors, h), -1, np.int32), np.full((anchors, h), np.nan, np.float32)
        for anchor in range(anchors):
            listed = rng.permutation(candidates)[: rng.integers(0, h + 1)]
            values = np.round(rng.normal(size=len(listed)), 1).astype(np.float32)
            order = np.lexsort((listed, -values))
            ids[anchor, : len(listed)], scores[anchor, : len(listed)] = listed[order], values[order]
        members.append(NegativeLists(ids, scores, np.round(rng.normal(size=anchors), 1).astype(np.float32)))
    positives = [np.sort(np.round(rng.normal(size=draw(st.integers(1, 9))), 1).astype(np.float32)) for _ in members]
    return members, positives, rng.uniform(0.1, 2, len(members)).tolist()


@settings(max_examples=30, deadline=None)
@given(worlds(), st.integers(1, 15))
def test_lists_are_those_of_the_formulas(world, h):
    members, positives, weights = world
    check("rank", members, positives, weights, fuse(members, list(map(by_rank, members)), weights, h), h)
    fused = fuse(members, list(map(by_score, positives, members)), weights, h)
    check("score", members, positives, weights, fused, h)
    own = [
        sum(w * share(p, m.positive_score[n]) for w, p, m in zip(weights, positives, members, strict=True))
        for n in range(len(members[0]))
    ]
    np.testing.assert_allclose(fused.positive_score, own, rtol=1e-6)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Three teachers' tables of one world, mined to different depths."""
    found = []
    for seed, name in enumerate(NAMES):
        found.append(tmp_path_factory.mktemp(name) / "table")
        hard_negatives(*world_of_pairs(seed), h=(12 - seed, 5), metric="dot").save(found[-1], dataset="d")
    return found


def fused_table(folders, output, method, weights=None):
    fuse_tables(
        folders,
        NAMES,
        method=method,
        weights=weights,
        depths={"i2t": 14, "t2i": 6},
        provenance={"dataset": "d"},
        positives=matching_pairs(IMAGE_OF),
        output=output,
    )
    return read_table(output)


@pytest.mark.parametrize("method", ["rank", "score"])
def test_tables_are_fused_group_by_group(folders, tmp_path, monkeypatch, method):
    monkeypatch.setattr(fusion, "GROUP_ROWS", 8)
    monkeypatch.setattr(writing, "GROUP_ROWS", 8)
    weights = [1.0, 2.0, 0.5]
    table, members = fused_table(folders, tmp_path / "table", method, weights), [read_table(path) for path in folders]
    positives = [member.t2i.positive_score for member in members]
    used = weights if method == "rank" else [weight / 3.5 for weight in weights]
    for direction, h in (("i2t", 14), ("t2i", 6)):
        check(method, [member[direction] for member in members], positives, used, table[direction], h)
        assert table.manifest["directions"][direction]["sources"] == NAMES
        assert np.isnan(table[direction].positive_score).all() == (method == "rank")
    assert audit(tmp_path / "table") == []
    described = describe(table.i2t, 90)
    of_positives = described.positive_score, described.positive_rank, described.above_positive
    assert [one is None for one in of_positives] == [method == "rank"] * 3
    assert pq.ParquetFile(tmp_path / "table" / "i2t.parquet").num_row_groups == 4


def test_a_table_without_scores_of_positives_is_fused_by_rank_only(folders, tmp_path):
    fused_table(folders, tmp_path / "first", "rank")
    mixed = [tmp_path / "first", *folders[:2]]
    fused_table(mixed, tmp_path / "ranks", "rank")
    with pytest.raises(ValueError, match=r'has no scores of positives .* fuse by method = "rank"'):
        fused_table(mixed, tmp_path / "scores", "score")
    assert not (tmp_path / "scores").exists()
