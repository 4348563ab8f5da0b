"""What a process of a gang logs is kept until it is taken, whichever thread logs it."""

from __future__ import annotations

import logging
import threading

from aoq.pipeline.produce.gang import _Outbox


def test_lines_are_taken_once():
    outbox = _Outbox(logging.INFO)
    outbox.handle(logging.LogRecord("aoq", logging.INFO, "", 0, "step %d", (3,), None))
    assert outbox.take() == [("aoq", logging.INFO, "step 3")]
    assert outbox.take() == []


def test_lines_are_not_taken_while_one_is_written():
    outbox = _Outbox(logging.INFO)
    taking = threading.Thread(target=outbox.take)
    with outbox.lock:
        taking.start()
        taking.join(0.2)
        assert taking.is_alive()
    taking.join()
