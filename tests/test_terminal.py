"""Characters that a terminal would obey are shown instead; those that its encoding lacks are escaped."""

from __future__ import annotations

import io
import sys
import unicodedata

import pytest

from aoq.pipeline.terminal import escape_what_the_terminal_lacks, is_hidden, visible, visible_value

SEEN = ["naïve café", "👩‍🚀 a dog 🐕", "כלב רץ על הדשא", "می‌خواهم", "क्‍ष", "two\tcolumns\nand lines"]


@pytest.mark.parametrize("text", SEEN)
def test_what_is_seen_stays(text):
    assert visible(text) == text


def test_nothing_hidden_is_left():
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    shown = visible(every)
    assert not any(map(is_hidden, shown))
    assert {unicodedata.category(character) for character in shown} & {"Cc", "Cf"} == {"Cc", "Cf"}  # \n, \t, joiners
    assert visible("\x1b[2J\x9b\u202e\x00\u2028\udcff\r") == r"\x1b[2J\x9b\u202e\x00\u2028\udcff\r"


def test_markup_stays_markup():
    markupsafe = pytest.importorskip("markupsafe")
    shown = visible_value(markupsafe.Markup("<b>\x07</b>"))
    assert (type(shown), shown) == (markupsafe.Markup, r"<b>\x07</b>")
    assert visible_value("<b>\x07") == r"<b>\x07"
    assert visible_value(7) == "7"


@pytest.mark.parametrize(("encoding", "shown"), [("latin-1", b"caf\xe9 \\u2013"), ("ascii", b"caf\\xe9 \\u2013")])
def test_a_terminal_of_few_characters_shows_the_rest_as_escapes(monkeypatch, encoding, shown):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    escape_what_the_terminal_lacks()
    sys.stdout.write("café –")
    sys.stdout.flush()
    assert written.getvalue() == shown
