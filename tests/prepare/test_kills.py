"""`aoq prepare` and `aoq embed` killed at any instant: the same command again ends at the same bytes (`kills`)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.prepare.conftest import encoded, picture, write_csv

IMAGES = 60


@pytest.fixture
def photos(tmp_path):
    """Two captions per image, and two splits: a run can be killed in either."""
    rows = []
    for n in range(IMAGES):
        (tmp_path / f"{n:03}.jpg").write_bytes(encoded(picture(n, 90, 60), "JPEG"))
        rows += [[f"{n:03}.jpg", f"a photograph of {n} {place}", "dev" if n % 4 == 0 else "train"] for place in "ab"]
    return write_csv(tmp_path / "photos.csv", ["file_name", "caption", "split"], rows)


def run_kills(*arguments: object) -> None:
    command = [sys.executable, "-m", "tests.prepare.kills", *map(str, arguments)]
    root = Path(__file__).parent.parent.parent
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_prepare_continues_after_kills(clip, photos, tmp_path):
    extractor = "--extractor", f"transformers:{clip[2]}", "--tokens", "pooled"
    run_kills(tmp_path, "prepare", photos, *extractor, "--threads", 1, "--batch-size", 4)


def test_embed_continues_after_kills(clip, photos, prepared, tmp_path):
    data = prepared(photos, "data", thumbnails=False)
    run_kills(tmp_path, "embed", "--encoder", f"transformers:{clip[2]}", "--threads", 1, data)
