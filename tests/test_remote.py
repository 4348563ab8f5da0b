"""Vectors at an address: fetched once, again when they changed, under a name of their content."""

from __future__ import annotations

import threading
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from aoq.pipeline.remote import fetch, fetch_given

CONTENT = bytes(range(256)) * 5


class Bucket(BaseHTTPRequestHandler):
    """The part of S3 that reading one object needs."""

    protocol_version = "HTTP/1.1"
    reads = 0

    def do_HEAD(self):
        self._answer(b"")

    def do_GET(self):
        type(self).reads += 1
        self._answer(CONTENT)

    def _answer(self, body):
        there = self.path.startswith("/bucket/images.npy")
        first, last = 0, len(CONTENT) - 1
        if asked := self.headers.get("Range"):
            first, last = (int(place) for place in asked.removeprefix("bytes=").split("-"))
            last = min(last, len(CONTENT) - 1)
        self.send_response((206 if asked else 200) if there else 404)
        self.send_header("Content-Length", str(last + 1 - first) if there else "0")
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(CONTENT)}")
        self.send_header("Last-Modified", "Sat, 21 Nov 2026 12:00:00 GMT")
        self.end_headers()
        self.wfile.write(body[first : last + 1] if there else b"")

    def log_message(self, *_):
        pass


@pytest.fixture
def bucket():
    """The address of a bucket on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    query = f"endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=us-east-1"
    yield lambda name: f"s3://key:secret@bucket/{name}?{query}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_object_of_an_s3_store_is_fetched_once(bucket, tmp_path):
    copy = fetch(bucket("images.npy"), tmp_path)
    assert copy == tmp_path / f"{sha256(CONTENT).hexdigest()}.npy"
    assert copy.read_bytes() == CONTENT
    reads = Bucket.reads
    assert fetch(bucket("images.npy"), tmp_path) == copy
    assert Bucket.reads == reads > 0
    with pytest.raises(FileNotFoundError, match=r"there is no file at s3://.*bucket/none\.npy"):
        fetch(bucket("none.npy"), tmp_path)


def test_a_file_is_fetched_again_when_it_changed_or_its_copy_is_gone(tmp_path):
    source, cache = tmp_path / "vectors.safetensors", tmp_path / "cache"
    source.write_bytes(b"one")
    one = fetch(source.as_uri(), cache)
    source.write_bytes(b"two!")
    two = fetch(source.as_uri(), cache)
    assert (one.read_bytes(), two.read_bytes()) == (b"one", b"two!")
    two.write_bytes(b"cut")
    assert fetch(source.as_uri(), cache).read_bytes() == b"two!"
    assert fetch_given(f"{source.as_uri()}::text", cache) == f"{two}::text"
    assert fetch_given("vectors.npy::text", cache) == "vectors.npy::text"
    assert {path.suffix for path in cache.iterdir()} == {".seen", ".safetensors"}


@pytest.mark.parametrize("content", [b"two!", b"one!", b"", b"\xff", b"\0", b"x" * 300, b"../source.npy"])
@pytest.mark.parametrize("suffix", [".npy", ".seen"])
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
        ("gopher://host/images.npy", ValueError, "gopher://host/images.npy is no address that can be read .*s3://"),
    ],
)
def test_an_address_without_a_file_is_refused(tmp_path, address, error, message):
    with pytest.raises(error, match=message):
        fetch(address, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
