"""Pictures in `thumbs/` are read by Pillow, which an extra installs."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.thumbnails import Thumbnails

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


@pytest.fixture
def thumbnails(write_split: Callable[..., Path]) -> Thumbnails:
    folder = write_split(ids=["a.png", "b.png", "../a.png", "d.png"])
    (folder / "thumbs").mkdir()
    (folder / "thumbs" / "a.png").write_bytes(base64.b64decode(DOT))
    (folder / "thumbs" / "b.png").write_bytes(b"no picture")
    (folder / "a.png").write_bytes(base64.b64decode(DOT))
    return Thumbnails(folder, open_split(folder, "train"))


def test_what_is_no_picture_or_lies_elsewhere_is_none(thumbnails: Thumbnails) -> None:
    assert thumbnails[0].startswith("data:image/jpeg;base64,")
    assert [thumbnails[image] for image in (1, 2, 3)] == [None] * 3


def test_without_pillow_it_says_what_to_install(thumbnails: Thumbnails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r'pictures needs PIL .*`pip install "aoq\[report\]"`'):
        thumbnails[0]
    assert thumbnails[3] is None
