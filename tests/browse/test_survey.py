"""The survey finds what is worth looking at, compared with loops over the whole table."""

from __future__ import annotations

import html

import numpy as np
import pytest

from aoq.pipeline.browse import lists as surveying
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import read_table


@pytest.fixture(scope="module")
def read(folders):
    return [read_table(folder) for folder in folders]


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
@pytest.mark.parametrize("number", [0, 1])
def test_hubs_and_the_most_confused(source, read, number, direction):
    lists, found = read[number][direction], source.tables[number].surveys[direction]
    counts = {}
    for row in lists.negative_ids:
        for one in row[row >= 0].tolist():
            counts[one] = counts.get(one, 0) + 1
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:12]
    assert found.hubs == expected
    gaps = [(float(lists.scores[row, 0] - lists.positive_score[row]), -row) for row in range(len(lists))]
    assert found.confused == [(-row, gap) for gap, row in sorted(gaps, reverse=True)[:12] if gap >= 0]


def test_suspects_are_by_the_view_or_above_the_positive(source, read, world):
    view = read_view(next((world / "artifacts" / "screen").glob("*/view")), read[0].manifest)
    for number, judged in ((0, view), (1, None)):
        expected = {}
        for direction in ("i2t", "t2i"):
            lists = read[number][direction]
            for anchor, place in np.ndindex(lists.negative_ids.shape):
                other = int(lists.negative_ids[anchor, place])
                pair = (anchor, other) if direction == "i2t" else (other, anchor)
                value = float(lists.scores[anchor, place])
                is_suspected = value >= lists.positive_score[anchor]
                if judged is not None:
                    value = float(judged[direction].suspicion[anchor, place])
                    is_suspected = value > 0 and judged[direction].is_allowed[anchor, place]
                if is_suspected:
                    expected[pair] = max(value, expected.get(pair, -np.inf))
        found = source.tables[number].suspects
        pairs = list(zip(found["image"].tolist(), found["caption"].tolist(), strict=True))
        assert len(pairs) == len(set(pairs)) == min(500, len(expected))
        best = sorted(expected.values(), reverse=True)[: len(pairs)]
        assert found["suspicion"].tolist() == pytest.approx(best, abs=1e-6)
        assert [expected[pair] for pair in pairs] == pytest.approx(best, abs=1e-6)


def test_row_groups_make_no_difference(source, folders, monkeypatch):
    """Row groups of the table and of its view may differ."""
    lists = source.tables[0].lists["i2t"]
    whole = surveying.survey(lists, 350)
    monkeypatch.setattr(lists, "_starts", [0, len(lists)])
    ((start, group, judged),) = lists.groups()
    assert start == 0
    for first, last in ((0, 1), (10, 33), (33, 70)):
        part = lists._read_judged(first, last)
        assert np.array_equal(part.flags, judged.flags[first:last])
        assert np.array_equal(part.suspicion, judged.suspicion[first:last])
    assert len(group) == len(judged.flags) == 70
    assert surveying.survey(lists, 350).hubs == whole.hubs


def test_the_start_shows_them(browse, source):
    page = html.unescape(browse.text("/?table=1"))
    survey = source.tables[1].surveys["t2i"]
    row, count = survey.hubs[0]
    assert f'href="/image/{row}/listed?table=1"' in page
    assert f"in {count} of 350" in page
    assert page.count("<svg") == 2
    total = len(source.tables[1].suspects)
    assert total == surveying.MOST_SUSPECTS
    assert f"{total} most suspected false negatives" in page
    assert f"{total} of them not marked yet" in page
    pair = source.tables[1].suspects[["image", "caption"]][0].tolist()
    browse.mark(*pair, match="no")
    assert f"{total - 1} of them not marked yet" in browse.text("/?table=1")
    assert f"p{pair[0]}-{pair[1]}" not in browse.text("/suspects?table=1")
    assert f"p{pair[0]}-{pair[1]}" in browse.text("/suspects?table=1&show=marked")
