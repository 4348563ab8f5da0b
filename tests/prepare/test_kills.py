"""`aoq prepare` and `aoq embed` killed at any instant: the same command again ends at the same bytes (`kills`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.prepare.conftest import encoded, picture, write_csv

ROOT = Path(__file__).parent.parent.parent
IMAGES = 100
MAIN = "from aoq.pipeline.cli import main; main()"


@pytest.fixture
def photos(tmp_path):
    """Two captions an image, and two splits: a run can be killed in either."""
    rows = []
    for n in range(IMAGES):
        (tmp_path / f"{n:03}.jpg").write_bytes(encoded(picture(n, 90, 60), "JPEG"))
        rows += [[f"{n:03}.jpg", f"a photograph of {n} {place}", "dev" if n % 4 == 0 else "train"] for place in "ab"]
    return write_csv(tmp_path / "photos.csv", ["file_name", "caption", "split"], rows)


def run_kills(*arguments: object) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.prepare.kills", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_prepare_goes_on_after_kills(photos, tmp_path):
    run_kills(tmp_path, "prepare", photos, "--tokens", "pooled", "--threads", 1, "--batch-size", 4)


def test_embed_goes_on_after_kills(clip, photos, tmp_path):
    command = ("prepare", photos, tmp_path / "data", "--tokens", "pooled", "--threads", 1, "--no-thumbnails")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", MAIN, *map(str, command)], cwd=ROOT, env=environment, check=True)
    run_kills(tmp_path, "embed", "--encoder", f"transformers:{clip[2]}", "--threads", 1, tmp_path / "data")
