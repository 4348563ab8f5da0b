"""Log lines and progress on stderr; text of unknown origin made safe for terminals and pages."""

from __future__ import annotations

import atexit
import errno
import io
import logging
import os
import re
import signal
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from types import TracebackType
from typing import Any

from aoq.pipeline.engine import torchrun_rank

HIDDEN = {"Cc", "Cf", "Co", "Cs", "Zl", "Zp"}
"""Categories of invisible characters: controls, formats, private use, surrogates, line and paragraph separators."""
ALLOWED = frozenset("\n\t\u200c\u200d")
"""Newlines, tabs, and the joiners that Persian, Hindi and emoji need."""


def visible(text: str) -> str:
    r"""Escape every character that a terminal would obey rather than show.

    >>> print(visible("a\x1b[31m caption \u202eof\x00 ours"))
    a\x1b[31m caption \u202eof\x00 ours
    """
    if text.isprintable():
        return text
    shown = (one if one.isprintable() or not is_hidden(one) else one.encode("unicode_escape").decode() for one in text)
    return "".join(shown)


def visible_value(value: Any) -> Any:
    """Escape hidden characters in a value for a page; markup stays markup."""
    shown = visible(str(value))
    return type(value)(shown) if hasattr(value, "__html__") else shown


def is_hidden(character: str) -> bool:
    """Return whether a terminal obeys the character rather than showing it."""
    return character not in ALLOWED and unicodedata.category(character) in HIDDEN


def escape_what_the_terminal_lacks() -> None:
    """Make stdout escape characters that its encoding lacks, as stderr does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean …?" suggestion, or an empty string.

    >>> did_you_mean("demmo", ["demo", "f30k_scan"])
    "did you mean 'demo'?"
    """
    close = get_close_matches(name, list(known))
    return f"did you mean {' or '.join(map(repr, close))}?" if close else ""


logger = logging.getLogger(__name__)

FAILED = re.compile(r"^\* (\d+ failed:\n(?: {4}.*\n)+)", re.MULTILINE)
QUIET_SECONDS = 15.0
"""Seconds between two lines of progress."""
REMEDIES = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some space, or write to another disk",
    errno.EFBIG: "allow larger files (`ulimit -f unlimited`), or write to another file system",
    errno.ENAMETOOLONG: "choose a name of at most 240 bytes, as temporary files need a longer one",
}
"""Remedies for errors that the system reports only by number."""
STOPPED = "stopped; finished work is kept; run the same command again to resume"

Reporter = Callable[[int, int, str], None]
"""Called with (done, total, text)."""


def log_to_console() -> None:
    """Log our lines and Luigi's warnings to stderr; errors take one line, with a traceback in the work directory."""
    escape_what_the_terminal_lacks()
    root = logging.getLogger()
    if root.handlers:
        return
    handler = _Stderr()
    handler.setLevel(logging.ERROR if torchrun_rank() else logging.INFO)  # only the first process logs progress
    handler.setFormatter(_OneLine("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for name in ("luigi", "filelock", "faiss.loader", "werkzeug"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns when it builds its font cache
    logging.getLogger("luigi-interface").addFilter(_is_failure)


def explained(error: BaseException) -> str:
    """Return an error's message, with a remedy if REMEDIES has one."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    place = error.filename2 or error.filename
    at = f": {place}" if place else ""
    if error.errno in REMEDIES and error.strerror.endswith(os.strerror(error.errno)):
        return f"{os.strerror(error.errno)}{at}; {REMEDIES[error.errno]}."
    return f"{error.strerror}{at}"


class Stopped(KeyboardInterrupt):
    """A signal to end the program; to Luigi, any error except a KeyboardInterrupt is a failed task."""

    def __init__(self, number: int = signal.SIGINT, _: object = None) -> None:
        self.code = 128 + number


def stop_on_signals() -> None:
    """Raise Stopped on SIGINT, SIGTERM and SIGHUP, unless they are ignored; under torchrun, leave signals to it."""
    if torchrun_rank() is None and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, _stop)


def _stop(number: int, _: object) -> None:
    raise Stopped(number)


def end_in_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Replace `sys.excepthook`: a stopped program prints no traceback."""
    if not isinstance(error, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write(f"{STOPPED}\n")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(error.code if isinstance(error, Stopped) else 130)


def name_lines(subject: str) -> None:
    """Prefix the log lines of this process with the subject, since other processes log too."""
    _OneLine.subject = f"{subject}: "


def duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


@contextmanager
def show_progress(title: str) -> Iterator[Reporter]:
    """Show a bar on a terminal of this process alone; else log a line every QUIET_SECONDS, even without reports."""
    pace = _Pace()
    if _OneLine.subject or not sys.stderr.isatty() or os.environ.get("TERM") in ("dumb", "unknown"):
        ended = threading.Event()

        def log() -> None:
            while not ended.wait(QUIET_SECONDS):
                logger.info("%s: %s", title, pace.text())

        lines = threading.Thread(target=log, daemon=True)
        lines.start()
        try:
            yield pace.report
        finally:
            ended.set()
            lines.join()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    plain = partial(TextColumn, markup=False)
    columns = plain("{task.description}"), BarColumn(), plain("{task.fields[text]}")
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(visible(title), total=None, text="")

        def show(done: int, total: int, text: str) -> None:
            pace.report(done, total, text)
            progress.update(bar, completed=done, total=total, text=pace.text())

        yield show


class _Pace:
    """Speed of work since its first report; work counted before it may be an interrupted run's."""

    def __init__(self) -> None:
        self._since, self._first, self._done, self._text = time.monotonic(), 0, 0, ""
        self._last = self._since

    def report(self, done: int, total: int, text: str) -> None:
        now = time.monotonic()
        if not self._text or done < self._done:  # another part, such as the captions, counts from 0
            self._since, self._first = now, done
        self._last, self._done, self._text = now, done, f"{done} of {total} {text}"
        if self._first < done < total:
            speed = (done - self._first) / max(1e-9, now - self._since)
            self._text += f", {speed:.3g} per second, {duration((total - done) / speed)} left"

    def text(self) -> str:
        waited = time.monotonic() - self._last
        if not self._text:
            return f"{duration(waited)} so far"
        return self._text if waited < QUIET_SECONDS / 2 else f"{self._text}; {duration(waited)} since then"


def _is_failure(record: logging.LogRecord) -> bool:
    """Pass Luigi's warnings and the failed tasks in its summary."""
    if record.levelno >= logging.WARNING:
        return True
    failed = FAILED.search(record.getMessage())
    if failed is not None:
        record.msg, record.args = failed[1].rstrip(), ()
    return failed is not None


class _Stderr(logging.Handler):
    """Write to the current sys.stderr: a progress bar replaces it to keep lines above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class _OneLine(logging.Formatter):
    """User errors print one line; bugs keep their traceback. Neither can steer the terminal by control characters."""

    subject = ""
    """Prefix of each line, unless the message has it already."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, (ValueError, OSError, ImportError)):
            return visible(f"{self.formatTime(record, self.datefmt)} {self.subject}error: {explained(error)}")
        return visible(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (logging's name)
        if not record.message.startswith(self.subject):
            record.message = self.subject + record.message
        return super().formatMessage(record)
