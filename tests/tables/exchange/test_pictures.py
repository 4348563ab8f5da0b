"""An image's id names its picture file; missing files are refused."""

from __future__ import annotations

import os

import pytest

from aoq.pipeline.tables.exchange.outgoing import find_pictures

FILES = ("a.jpg", "b.png", "c.gif", "d.webp", "sub/e.bmp", "sub/f", "sub/g.JPG")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root" / "sub").mkdir(parents=True)
    for name in FILES:
        (tmp_path / "root" / name).write_bytes(b"a picture")
    (tmp_path / "secret.jpg").touch()
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


def test_a_root_that_is_no_folder_is_refused(root):
    with pytest.raises(ValueError, match=r"a\.jpg is no folder; give --image-root"):
        find_pictures(root / "a.jpg", ["a"])
