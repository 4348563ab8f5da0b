"""Run `aoq` and `luigi` as users do, each forked from a process that has already imported what they import."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, get_context, set_start_method
from multiprocessing.context import ForkServerContext
from pathlib import Path
from tempfile import mkdtemp

import pytest

from tests.chaos import forks

NO_VARIABLES: Mapping[str, str] = {}


def forking() -> ForkServerContext:
    """A context whose processes are forks of one that has imported what commands import."""
    context = get_context("forkserver")
    context.set_forkserver_preload([*forks.PRELOADED])
    with pytest.MonkeyPatch.context() as patch:
        for name, value in forks.ENVIRONMENT.items():
            patch.setenv(name, value)
        forkserver.ensure_running()
    return context


class Program:
    """A command that was started, in a process group of its own."""

    def __init__(
        self,
        command: Sequence[object],
        folder: Path,
        variables: Mapping[str, str] = NO_VARIABLES,
        privileged: bool = True,
    ) -> None:
        self._folder = mkdtemp()
        self._shown = [str(Path(self._folder, name)) for name in ("stdout", "stderr")]
        Path(self._shown[0]).touch()
        command = [Path(str(command[0])).name, *map(str, command[1:])]
        self._command, given = command, (command, str(folder), self._shown, dict(variables), privileged)
        self._process = forking().Process(target=_become, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        """Number of its process and of its group."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return Path(self._shown[0]).read_text()

    @property
    def is_running(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        """Kill all its processes with SIGKILL, unless it has ended."""
        with suppress(ProcessLookupError):
            wait_for(lambda: os.getpgid(self.pid) == self.pid)
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Return what the command printed and its code, once it has ended."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired(self._command, timeout)
        output, errors = (Path(name).read_text(errors="backslashreplace") for name in self._shown)
        shutil.rmtree(self._folder)
        return subprocess.CompletedProcess(self._command, code, output, errors)


@contextmanager
def browsing(command: Sequence[object], folder: Path, stop: int = signal.SIGINT) -> Iterator[re.Match[str]]:
    """Serve pages by `aoq browse` and give what it prints first, with the address; then stop it."""
    program = Program([*command, "--port", "0"], folder)
    try:
        wait_for(lambda: program.output.count("\n") == 2 or not program.is_running)
        printed = re.match(r"(http://127\.0\.0\.1:\d+/)  .*\n.*\n", program.output)
        assert printed is not None, program.wait()
        yield printed
    finally:
        os.kill(program.pid, stop)
        ended = program.wait(60)
    assert ended.returncode == 128 + stop
    assert ended.stderr.splitlines()[-1] == "stopped; finished work is kept; run the same command again to resume"
    assert "Traceback" not in ended.stderr


def processes_of(session: int) -> list[int]:
    """Processes of a session that are no zombies."""
    shown = subprocess.run(["ps", "-o", "pid=,stat=", "-s", str(session)], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in shown.stdout.splitlines() if "Z" not in line.split()[1]]


def wait_for(condition, seconds=120):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came to the point where it was to be killed"
        time.sleep(0.01)


def _become(command: list[str], folder: str, shown: list[str], variables: dict[str, str], privileged: bool) -> None:
    set_start_method("fork", force=True)  # as in any program; here it would be that of this process
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore Ctrl-C
    os.chdir(folder)
    if not privileged:
        forks._drop_capabilities()
    forks._forget_settings()  # the server has read the luigi.cfg of another folder
    streams = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in shown]
    forks._become(command, Path(folder), streams, variables)
