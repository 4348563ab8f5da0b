"""Progress where nobody watches: a log line now and then."""

from __future__ import annotations

import logging

from aoq.pipeline import progress


def test_without_a_terminal_lines_are_logged_now_and_then(caplog, monkeypatch):
    clock = iter([0.0, 10.0, 40.0, 40.0, 50.0, 80.0, 80.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    with caplog.at_level(logging.INFO), progress.show_progress("mining") as report:
        for done in range(1, 5):
            report(done, 4, "text")
    assert caplog.messages == ["mining: 2 of 4 text", "mining: 4 of 4 text"]
