"""Pictures in `thumbs/` are read by Pillow, which an extra installs."""

from __future__ import annotations

import base64
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from aoq.pipeline.data import thumbnails as module
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.thumbnails import WIDTH, Thumbnails
from tests.pictures import bomb

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
    assert thumbnails.read(0).uri.startswith("data:image/jpeg;base64,")
    assert [thumbnails.read(image) for image in (1, 2, 3)] == [None] * 3


def test_without_pillow_it_says_what_to_install(thumbnails: Thumbnails, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ImportError, match=r'pictures needs PIL .*`pip install "aoq\[report\]"`'):
        thumbnails.read(0)
    assert thumbnails.read(3) is None


@pytest.mark.parametrize("side", [8_000, 13_000])
def test_a_small_file_of_many_pixels_is_refused_by_its_header(
    thumbnails: Thumbnails, tmp_path: Path, side: int, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "thumbs" / "a.png").write_bytes(bomb(side))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert thumbnails.read(0) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB
    assert f"{tmp_path / 'thumbs' / 'a.png'} has more than 50 megapixels" in caplog.text


@pytest.mark.parametrize(
    ("form", "mode"), [("JPEG", "CMYK"), ("PNG", "P"), ("PNG", "RGBA"), ("WEBP", "RGB"), ("GIF", "P")]
)
def test_pictures_of_the_known_formats_are_shown_small(
    thumbnails: Thumbnails, tmp_path: Path, form: str, mode: str
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new(mode, (900, 600)).save(tmp_path / "thumbs" / "a.png", form)
    picture = thumbnails.read(0)
    with image.open(module.io.BytesIO(picture.content)) as small:
        assert (small.format, small.size) == ("JPEG", (WIDTH, WIDTH * 2 // 3))
    assert (picture.width, picture.height) == (WIDTH, WIDTH * 2 // 3)


def test_links_are_followed_as_a_folder_and_otherwise_named_once(
    thumbnails: Thumbnails, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    thumbs = tmp_path / "thumbs"
    for name in ("b.png", "d.png"):
        (thumbs / name).unlink(missing_ok=True)
        (thumbs / name).symlink_to(tmp_path / "a.png")
    with caplog.at_level(logging.WARNING):
        assert [thumbnails.read(image) for image in (1, 3, 1)] == [None] * 3
    assert caplog.text.count("is a link out of thumbs/") == 1
    assert f"{thumbs / 'b.png'} is a link" in caplog.text
    (thumbs / "d.png").unlink()
    os.link(thumbs / "a.png", thumbs / "d.png")
    thumbs.rename(tmp_path / "elsewhere")
    thumbs.symlink_to("elsewhere")
    assert thumbnails.read(3) == thumbnails.read(0) is not None


def test_one_picture_is_decoded_at_a_time(thumbnails: Thumbnails, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    at_once, most, opened = [], [], image.open

    def counted(*given: object, **options: object) -> object:
        at_once.append(1)
        most.append(len(at_once))
        threading.Event().wait(0.02)
        at_once.pop()
        return opened(*given, **options)

    monkeypatch.setattr(image, "open", counted)
    threads = [threading.Thread(target=thumbnails.read, args=(0,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8
