"""An image's id names its picture file; missing files and files that are no picture are refused."""

from __future__ import annotations

import os

import pytest

from aoq.pipeline.tables.exchange.pictures import find_pictures, require_endings, require_pictures

KINDS = {
    "a.jpg": b"\xff\xd8\xff\xe0",
    "b.png": b"\x89PNG\r\n\x1a\n",
    "c.gif": b"GIF89a",
    "d.webp": b"RIFF\x10\0\0\0WEBPVP8 ",
    "sub/e.bmp": b"BM\x10\0\0\0",
    "sub/f": b"II*\0",
    "sub/g.JPG": b"\xff\xd8\xff\xe1",
}


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "sub").mkdir(parents=True)
    for name, content in KINDS.items():
        (tmp_path / "root" / name).write_bytes(content)
    (tmp_path / "secret.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    return tmp_path / "root"


def test_an_id_names_its_file_with_the_ending_or_without(root):
    found = find_pictures(root, ["a", "a.jpg", "b", "c.gif", "d", "sub/e", "sub/f", "sub/g"])
    names = [os.path.relpath(path, root) for path in found]
    assert names == ["a.jpg", "a.jpg", "b.png", "c.gif", "d.webp", "sub/e.bmp", "sub/f", "sub/g.JPG"]
    assert all(os.path.isabs(path) for path in found)


@pytest.mark.parametrize("name", ["17", "../secret.jpg", "/etc/passwd", "", ".", "sub", "a\0", "x" * 5000])
def test_an_id_without_a_file_below_the_root_is_named(root, name):
    with pytest.raises(ValueError, match=r"1 of 2 images have no file below .*root, the first is '"):
        find_pictures(root, ["a", name])


@pytest.mark.parametrize(("content", "why"), [(b"", "it is empty"), (b"<html>", "no JPEG, PNG"), (b"RIFF", "no JPEG")])
def test_a_file_that_is_no_picture_is_named(root, content, why):
    (root / "g.jpg").write_bytes(content)
    with pytest.raises(ValueError, match=rf"g\.jpg is no picture \({why}"):
        require_pictures(find_pictures(root, ["a", "g"]))


def test_a_root_that_is_no_folder(root):
    with pytest.raises(ValueError, match=r"a\.jpg is no folder; give --image-root"):
        find_pictures(root / "a.jpg", ["a"])


def test_sentence_transformers_would_take_a_path_without_an_ending_for_text(root):
    require_endings(find_pictures(root, ["a", "b", "sub/e"]))
    with pytest.raises(ValueError, match=r"sub/f does not end like an image"):
        require_endings(find_pictures(root, ["a", "sub/f"]))
