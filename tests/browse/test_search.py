"""Captions found by their words."""

from __future__ import annotations

import re
import unicodedata

import pytest

from aoq.pipeline.browse.source import CaptionSearch

CAPTIONS = [
    "Two DOGS run on the beach.",
    "A woman runs; a man stands.",
    "Ein Hund läuft über die Straße",
    "Cafe\u0301 at night (closed)",
    "一只狗在草地上跑",
    "a dog 🐕‍🦺 and a [dog] a.b",
    "כלב רץ",
]


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("dog", [0, 5]),
        ("RUN dogs", [0]),
        ("dogs run", [0]),
        ("man", [1]),
        ("run man", [1]),
        ("STRASSE", [2]),
        ("café", [3]),
        ("cafe\u0301", [3]),
        ("狗", [4]),
        ("草地", [4]),
        ("🐕", [5]),
        ("[dog]", [5]),
        ("a.b", [5]),
        ("a+b", []),
        (".*", []),
        ("כלב", [6]),
        ("dog  ", [0, 5]),
        ("", []),
        ("  ", []),
    ],
)
def test_words_are_found_in_any_order_and_case(query, rows):
    assert list(CaptionSearch(CAPTIONS).rows(query)) == rows


def test_it_finds_what_words_that_start_with_it_say():
    captions = [f"{one} {two}" for one in ("red", "blue", "bluish", "a") for two in ("Cat", "cats", "scat", "RED")]
    search = CaptionSearch(captions)
    for query in ("cat", "red", "blu cat", "red cat", "a"):
        expected = []
        for row, caption in enumerate(captions):
            words = re.findall(r"\w+", unicodedata.normalize("NFKC", caption).casefold())
            if all(any(word.startswith(asked) for word in words) for asked in query.split()):
                expected.append(row)
        assert list(search.rows(query)) == expected
