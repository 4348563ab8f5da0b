"""A slice of the campaign with a fixed seed; `make chaos` runs all of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SHARE = 0.03


def test_a_slice_of_the_campaign_holds():
    command = [sys.executable, "-m", "tests.chaos.campaign", "--share", str(SHARE), "--minutes", "4", "--jobs", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
