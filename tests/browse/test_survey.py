"""The survey and the search for captions find what they say, compared with loops over the whole table."""

import html
from collections import Counter

import numpy as np
import pytest

from aoq.pipeline.browse.source import find_captions, folded
from aoq.pipeline.browse.survey import MOST_SUSPECTS


@pytest.mark.parametrize("direction", ["i2t", "t2i"])
@pytest.mark.parametrize("number", [0, 1])
def test_hubs_and_the_most_confused(source, number, direction):
    lists, found = source.tables[number].lists[direction], source.tables[number].surveys[direction]
    counts = Counter(lists.negative_ids[lists.negative_ids >= 0].tolist())
    expected = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:12]
    assert found.hubs == expected
    gaps = [(float(lists.scores[row, 0] - lists.positive_score[row]), -row) for row in range(len(lists))]
    assert found.confused == [(-row, gap) for gap, row in sorted(gaps, reverse=True)[:12] if gap >= 0]


@pytest.mark.parametrize("number", [0, 1])
def test_suspects_are_by_the_view_or_above_the_positive(source, number):
    table, expected = source.tables[number], {}
    for direction in ("i2t", "t2i"):
        lists, judged = table.lists[direction], table.view and table.view[direction]
        for anchor, place in np.ndindex(lists.negative_ids.shape):
            other = int(lists.negative_ids[anchor, place])
            pair = (anchor, other) if direction == "i2t" else (other, anchor)
            value = float(lists.scores[anchor, place])
            is_suspected = value >= lists.positive_score[anchor]
            if judged is not None:
                value = float(judged.suspicion[anchor, place])
                is_suspected = value > 0 and judged.is_allowed[anchor, place]
            if is_suspected:
                expected[pair] = max(value, expected.get(pair, -np.inf))
    pairs = [(one.image, one.caption) for one in table.suspects]
    assert len(pairs) == len(set(pairs)) == min(MOST_SUSPECTS, len(expected))
    best = sorted(expected.values(), reverse=True)[: len(pairs)]
    assert [one.suspicion for one in table.suspects] == pytest.approx(best, abs=1e-6)
    assert [expected[pair] for pair in pairs] == pytest.approx(best, abs=1e-6)


def test_the_start_shows_them(browse, source):
    page = html.unescape(browse.text("/?table=1"))
    row, count = source.tables[1].surveys["t2i"].hubs[0]
    assert f'href="/image/{row}/listed?table=1"><img src="/picture/{source.train.key}/{row}"' in page
    assert f"in {count} of 350" in page
    assert page.count("<svg") == 2
    total = len(source.tables[1].suspects)
    assert total == MOST_SUSPECTS
    assert f"{total} most suspected false negatives" in page
    assert f"{total} of them not marked yet" in page
    _, image, caption, _ = source.tables[1].suspects[0]
    browse.mark(image, caption, match="no")
    assert f"{total - 1} of them not marked yet" in browse.text("/?table=1")
    assert f"p{image}-{caption}" not in browse.text("/suspects?table=1")
    assert f"p{image}-{caption}" in browse.text("/suspects?table=1&show=marked")


CAPTIONS = [
    "Two DOGS run on the beach.",
    "A woman runs; a man stands.",
    "Ein Hund läuft über die Straße",
    "Cafe\u0301 at night (closed)",
    "一只狗在草地上跑",
    "a dog 🐕‍🦺 and a [dog] a.b",
    "כלב רץ",
    "สุนัขสองตัววิ่งบนหญ้า",
]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("dog", [0, 5]),
        ("RUN dogs", [0]),
        ("run man", [1]),
        ("STRASSE", [2]),
        ("café", [3]),
        ("狗", [4]),
        ("🐕", [5]),
        ("[dog]", [5]),
        ("a.b", [5]),
        (".*", []),
        ("og", []),  # words that start with it
        ("כלב", [6]),
        ("วิ่ง", [7]),  # in a script without spaces
        ("", []),
    ],
)
def test_words_are_found_in_any_order_and_case(query, rows):
    assert list(find_captions([*map(folded, CAPTIONS)], query)) == rows
