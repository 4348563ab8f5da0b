"""Characters that a terminal would obey are escaped, as are those that its encoding lacks; progress is logged."""

import logging
import sys
import unicodedata
from types import SimpleNamespace

import pytest

from aoq.pipeline import console
from aoq.pipeline.console import is_hidden, visible, visible_value
from tests.programs import wait_for

SEEN = ["naïve café", "👩‍🚀 a dog 🐕", "כלב רץ על הדשא", "می‌خواهم", "क्‍ष", "two\tcolumns\nand lines"]


@pytest.mark.parametrize("text", SEEN)
def test_what_is_seen_stays(text):
    assert visible(text) == text


def test_nothing_hidden_is_left():
    ranges = [(0, 0x3100), (0xD7F0, 0xE010), (0xF8F0, 0x10000), (0xE0000, 0xE0200), (0x10FFF0, sys.maxunicode + 1)]
    shown = visible("".join(chr(number) for first, last in ranges for number in range(first, last)))
    assert not any(map(is_hidden, shown))
    assert {unicodedata.category(character) for character in shown} & {"Cc", "Cf"} == {"Cc", "Cf"}  # \n, \t, joiners
    assert visible("\x1b[2J\x9b\u202e\x00\u2028\udcff\r") == r"\x1b[2J\x9b\u202e\x00\u2028\udcff\r"


def test_markup_stays_markup():
    markupsafe = pytest.importorskip("markupsafe")
    shown = visible_value(markupsafe.Markup("<b>\x07</b>"))
    assert (type(shown), shown) == (markupsafe.Markup, r"<b>\x07</b>")
    assert visible_value("<b>\x07") == r"<b>\x07"
    assert visible_value(7) == "7"


def test_without_a_terminal_progress_is_logged_now_and_then(caplog, monkeypatch):
    now = 0.0
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(console, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    with caplog.at_level(logging.INFO), console.show_progress("mining") as report:
        for second, done in [(10, None), (11, 4), (12, 6), (13, 2), (20, None)]:  # 2 begins another part
            now = float(second)
            if done is not None:
                report(done, 10, "units")
            before = len(caplog.messages)
            wait_for(lambda before=before: len(caplog.messages) > before + 1)
    assert list(dict.fromkeys(caplog.messages)) == [
        "mining: 10.0 s so far",
        "mining: 4 of 10 units",
        "mining: 6 of 10 units, 2 per second, 2.0 s left",
        "mining: 2 of 10 units",
        "mining: 2 of 10 units; 7.0 s since then",
    ]
