"""Vectors at an address: fetched once, again when they changed, under a name of their content."""

from hashlib import sha256

import fsspec
import pytest

from aoq.pipeline.vectors import fetch, fetch_source

CONTENT = bytes(range(256)) * 5


def test_a_file_is_fetched_again_when_it_changed(tmp_path):
    source, cache = tmp_path / "vectors.safetensors", tmp_path / "cache"
    source.write_bytes(b"one")
    one = fetch(source.as_uri(), cache)
    source.write_bytes(b"two!")
    two = fetch(source.as_uri(), cache)
    assert (one.read_bytes(), two.read_bytes()) == (b"one", b"two!")
    assert fetch_source(f"{source.as_uri()}::text", cache) == f"{two}::text"
    assert fetch_source("vectors.npy::text", cache) == "vectors.npy::text"
    assert {path.suffix for path in cache.iterdir()} == {".seen", ".safetensors"}


@pytest.mark.parametrize(
    ("suffix", "content"), [(".npy", b"two!"), (".npy", b""), (".seen", b"\xff"), (".seen", b"../source.npy")]
)
def test_a_file_is_fetched_again_when_its_copy_is_damaged(tmp_path, suffix, content):
    source, cache = tmp_path / "source.npy", tmp_path / "cache"
    source.write_bytes(b"four")
    fetch(source.as_uri(), cache)
    (damaged,) = cache.glob(f"*{suffix}")
    damaged.write_bytes(content)
    assert fetch(source.as_uri(), cache).read_bytes() == b"four"
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("address", "error", "message"),
    [
        ("file:///nowhere/images.npy", FileNotFoundError, "there is no file at file:///nowhere/images.npy"),
        ("file:///", FileNotFoundError, "there is no file at file:///"),
        ("gopher://host/images.npy", ValueError, "gopher://host/images.npy is not an address that can be read .*s3://"),
    ],
)
def test_an_address_without_a_file_is_refused(tmp_path, address, error, message):
    with pytest.raises(error, match=message):
        fetch(address, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_other_schemes_are_those_of_fsspec(tmp_path):
    fsspec.filesystem("memory").pipe("/bucket/images.npy", CONTENT)
    copy = fetch("memory://bucket/images.npy", tmp_path)
    assert copy == tmp_path / f"{sha256(CONTENT).hexdigest()}.npy"
    assert copy.read_bytes() == CONTENT
    fsspec.filesystem("memory").pipe(
        "/bucket/images.npy", CONTENT[::-1]
    )  # of the same size; no time says that it changed
    assert fetch("memory://bucket/images.npy", tmp_path).read_bytes() == CONTENT[::-1]
