"""Slices of the campaign with a fixed seed, at least one case of a kind; `make chaos` runs all of it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SHARE = 0.004
QUICK = ("commands", "tables", "npy", "parquet", "checkpoints", "arguments", "requests")


def run_python(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("kinds", [QUICK, pytest.param((), marks=pytest.mark.slow, id="all")])
def test_a_slice_of_the_campaign_holds(kinds):
    options = ["--share", str(SHARE), "--minutes", "7", "--jobs", "1"]
    ended = run_python("-m", "tests.chaos.campaign", *kinds, *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "were not begun" not in ended.stdout
