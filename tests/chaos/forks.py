"""Commands in forked processes: what they import is loaded once, each may be killed, and each has limits of its own."""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PRELOADED = ("aoq.pipeline.cli", "aoq.pipeline.stages.train", "torch._dynamo", "luigi.cmdline")
"""Not `tasks`: it reads the luigi.cfg of the folder where the command runs."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
MEMORY = 3 << 30
"""Bytes of private memory that a command may take beyond what it starts with."""


@dataclass(frozen=True)
class Ended:
    """The end of a command; `code` is None if we killed it, and negative if a signal ended it."""

    code: int | None
    output: str
    errors: str
    seconds: float
    late: bool = False
    """It took longer than it was allowed."""
    operations: int = 0
    """Files and folders that it opened to write, made, renamed or removed, where they were counted."""

    @property
    def said(self) -> str:
        return (self.output + self.errors)[-600:]


def preload() -> None:
    """Import what commands import; nothing may have computed in a process that forks."""
    os.environ.update(ENVIRONMENT)
    for module in PRELOADED:
        importlib.import_module(module)


def start(
    command: Sequence[object],
    folder: Path,
    kill_before: int | None = None,
    privileged: bool = True,
) -> Running:
    """Begin `aoq ...` or `luigi ...` in a folder, in a process group of its own.

    With `kill_before` it is killed with SIGKILL before that one of its operations, the first being 1, and they are
    counted: 0 only counts them. Without privileges root obeys the permissions of files, as other users do.
    """
    streams = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  (closed by `wait`)
    counter = mmap.mmap(-1, 8)  # of all its processes together
    process = os.fork()
    if process == 0:
        if kill_before is not None:
            _count_operations(counter, kill_before)
        if not privileged:
            _drop_capabilities()
        _become([str(part) for part in command], folder, [file.fileno() for file in streams])
    return Running(process, streams, counter, time.monotonic())


def run(command: Sequence[object], folder: Path, *, kill_after: float | None = None, **options: object) -> Ended:
    return start(command, folder, **options).wait(kill_after=kill_after)  # type: ignore[arg-type]


OPERATIONS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR


def _count_operations(counter: mmap.mmap, kill_before: int) -> None:
    def see(event: str, arguments: tuple) -> None:
        if event in OPERATIONS or (event == "open" and arguments[2] & WRITING):
            count = int.from_bytes(counter[:8], "little") + 1
            counter[:8] = count.to_bytes(8, "little")
            if count == kill_before:
                os.killpg(0, signal.SIGKILL)

    sys.addaudithook(see)


class Running:
    """A command that was started."""

    def __init__(self, process: int, streams: list, counter: mmap.mmap, started: float) -> None:
        self.process, self._streams, self._counter, self._started = process, streams, counter, started

    def kill(self) -> None:
        for kill in (os.killpg, os.kill):  # it may not have made its group yet
            with suppress(ProcessLookupError):
                kill(self.process, signal.SIGKILL)

    @property
    def output(self) -> str:
        return self._text(0)

    def wait(self, *, kill_after: float | None = None, seconds: float = 120) -> Ended:
        """Wait to its end, but kill its group after `kill_after` seconds, as asked, or after `seconds`, as late."""
        limit, killed = seconds if kill_after is None else kill_after, False
        status = None
        while status is None:
            waited, found, _ = os.wait4(self.process, os.WNOHANG)
            if waited:
                status = found
            elif not killed and time.monotonic() - self._started > limit:
                killed = True
                self.kill()
            else:
                time.sleep(0.002)
        self.kill()  # what it left behind in its group
        code = os.waitstatus_to_exitcode(status)
        ended = Ended(
            None if killed else code,
            self._text(0),
            self._text(1),
            time.monotonic() - self._started,
            late=killed and kill_after is None,
            operations=int.from_bytes(self._counter[:8], "little"),
        )
        for file in self._streams:
            file.close()
        return ended

    def _text(self, stream: int) -> str:
        file = self._streams[stream]
        return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode("utf-8", "backslashreplace")


def _become(command: list[str], folder: Path, streams: list[int], environment: Mapping[str, str] | None = None) -> None:
    """The child: it never returns."""
    code = 70
    try:
        os.setsid()
        for number, stream in enumerate(streams, start=1):
            os.dup2(stream, number)
        os.chdir(folder)
        os.environ.update(environment or {})
        if Path("luigi.cfg").exists():
            _forget_settings()
        resource.setrlimit(resource.RLIMIT_DATA, (_data() + MEMORY,) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _main(command)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # which ends a program that was stopped in one line
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # the version of the structures, this process
    if ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")


def _forget_settings() -> None:
    """luigi.cfg is read where these are imported: in the folder of the campaign until now."""
    for name in [*sys.modules]:
        if f"{name}.".startswith(("luigi.", "aoq.pipeline.settings.", "aoq.pipeline.cli.")):
            del sys.modules[name]


def _main(command: list[str]) -> int:
    sys.argv = command
    try:
        if command[0] == "aoq":
            from aoq.pipeline.cli import main

            main(prog_name="aoq")
        else:
            from luigi.cmdline import luigi_run

            luigi_run(command[1:])
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return int(end.code or 0)
    return 0


def _data() -> int:
    """Bytes that count against RLIMIT_DATA now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/status says nothing of VmData")
