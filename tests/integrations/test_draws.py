"""Processes with different tables, options or screens are refused, each with the same error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integrations


def test_processes_with_different_tables_are_refused():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = Path(__file__).parent / "two_tables.py"
    ended = subprocess.run([*launch, str(script)], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    refused = (
        "process 1 has another table than process 0, or other texts, pictures or options; give every process the same."
    )
    assert sorted(ended.stdout.splitlines()) == [f"{rank}: {refused}" for rank in (0, 0, 0, 1, 1, 1)]
