"""A task's process dies with the one that forked it, whatever number that one has."""

import multiprocessing
import os
import signal
import sys
from types import SimpleNamespace

import pytest

from aoq.tasks.base import DieWithParent

FORK = multiprocessing.get_context("fork")


def task():
    with DieWithParent():
        sys.exit(7)


@pytest.mark.parametrize(
    ("forked_by", "child_of", "code"),
    [(9, 9, 7), (9, 1, -signal.SIGTERM), (1, 1, 7), (9, 8, -signal.SIGTERM)],
    ids=["at home", "orphaned", "in a container", "adopted by a subreaper"],
)
def test_a_task_runs_unless_its_parent_is_gone(monkeypatch, forked_by, child_of, code):
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(pid=forked_by))
    monkeypatch.setattr(os, "getppid", lambda: child_of)
    process = FORK.Process(target=task)
    process.start()
    process.join()
    assert process.exitcode == code
