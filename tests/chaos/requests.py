"""Hostile requests to `aoq browse`: no error of the server's, no file from elsewhere, and it goes on answering."""

import io
import os
import random
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from PIL import Image

from aoq.pipeline.console import is_hidden
from tests.chaos import forks
from tests.chaos.campaign import Kind
from tests.chaos.reference import Reference
from tests.chaos.rules import BrokenError, hold
from tests.pictures import bomb
from tests.republish import republish

REQUESTS = 40
CLIENTS = 50
MOST_GROWN = 600 << 20
"""Bytes that the server may take beyond what it starts with: one picture of the most pixels, and its copy."""
PICTURES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
PATHS = (
    *(
        "/",
        "/image/0",
        "/caption/0",
        "/image/0/listed",
        "/nothing/0",
        "/query/0",
        "/evaluations/0",
        "/favicon.ico",
        "*",
    ),
    *("/picture/train/0", "/picture/train/1", "/picture/train/2", "/picture/train/3", "/picture/dev/1", "/mark", "*"),
    *("/picture/train/../../../etc/passwd", "/picture/train/%2e%2e%2f", "/picture/../0", "/picture/train/-1"),
    *("/picture/train/99999999999999999999", "/picture/train/\u0661", "/static/../app.py", "/static/%2e%2e/app.py"),
    *("/static//etc/passwd", "//etc/passwd", "http://evil.example/", "/%00", "/\x7f", "/?page=0", "/?page=99999"),
    *("/image/0?table=99", "/image/0?page=-1", "/image/0?page=1e9", "/image/0?show=%3Cscript%3E"),
    *("/image/0?beside=0&beside=9", "/caption/5?table=0&run=99", "/search?q=", "/search?q=%00", "/search?q=%1b%5b31m"),
    *("/search?q=%ff%fe", "/search?q=%E2%80%AE", "/search?q=" + "x" * 6000, "/search?q=" + "x+" * 30_000),
    *("/image/0?table=" + "9" * 5000, "/image/0?" + "table=0&" * 7000, "/" + "?" * 70_000, "/" + "a/" * 3000),
    "/search?" + "&".join(f"q{n}=1" for n in range(5000)),
)
METHODS = ("GET", "GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "JUNK", "GET\x00", "get")
HEADERS = (
    *("Host: evil.example", "Host: 127.0.0.1:1", "Host: ", "X: " + "y" * 70_000, "Origin: http://evil.example"),
    *("Content-Length: -1", "Content-Length: 99999999999", "Content-Length: x", "Transfer-Encoding: chunked"),
    *("Cookie: \xff", "Range: bytes=0-99999999999", "Expect: 100-continue", "If-None-Match: *", ": empty"),
    *("Connection: upgrade", "Content-Type: multipart/form-data; boundary="),
    "Content-Type: application/x-www-form-urlencoded; charset=utf-7",
)
BODIES = (
    *(b"", b"token=x&image=0&caption=0", b"a=" + b"b" * 100_000, b"%", b"\x00\xff", b"token=%ff&back=%09//evil"),
    b"&" * 5000,
)


def hostile_requests(reference: Reference, folder: Path, rng: random.Random) -> None:
    place = reference.copy_chain("evaluation", folder / "place")
    pictures = _put_pictures(place, rng)
    before = {str(path.relative_to(place)) for path in place.rglob("*")}
    server = forks.start(("aoq", "browse", "./tiny.toml", "--port", "0"), place)
    slow: list[socket.socket] = []
    try:
        port = _port(server)
        start = _get(port, "/").decode()
        album = re.findall(r"/picture/(train-\w+)/", start)[0]
        peak = _peak(server.process)
        slow += [_connect(port) for _ in range(6)]
        for connection in slow:
            connection.sendall(b"GET / HTTP/1.1\r\nHost:")  # and nothing more, or a byte now and then
        paths = [f"/picture/{album}/{row}" for row in range(pictures)]
        for number in range(REQUESTS + pictures):
            request = _request(rng, port)
            if number >= REQUESTS:
                request = f"GET {paths[number - REQUESTS]} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
            _drip(slow[:3])
            hold(_wrong_answer(_ask(port, request)), ascii(request[:200].decode("latin-1")))
        hold(_all_at_once(port, rng.choices([*paths, "/", "/image/0", "/caption/1"], k=CLIENTS)))
        started = time.monotonic()
        good, seconds = _get(port, "/"), time.monotonic() - started
        hold(f"the start page gives {good[:60]!r}" if good != start.encode() else None, "after it all")
        hold(f"the start page takes {seconds:.0f} s" if seconds > 5 else None, "after it all")
        grown = _peak(server.process) - peak
        hold(f"the server's memory grew by {grown >> 20} MB" if grown > MOST_GROWN else None)
    finally:
        for connection in slow:
            connection.close()
        server.kill()
        ended = server.wait(seconds=10)
    new = {str(path.relative_to(place)) for path in place.rglob("*")} - before - {"matches.csv", ".matches.csv.lock"}
    hold(f"it wrote {sorted(new)}" if new else None)
    if "Traceback" in ended.errors or any(map(is_hidden, ended.errors)):
        hold(f"on its terminal: {ended.errors[-800:]!a}")


def _wrong_answer(answer: bytes) -> str | None:
    head, _, body = answer.partition(b"\r\n\r\n")
    if re.match(rb"HTTP/1\.[01] 5(?!01)", answer):
        return ascii(answer[:60])
    if b"root:x:" in answer or b"import Flask" in answer:
        return "it gives files from elsewhere"
    if b"Traceback" in answer or b"evil" in head:
        return ascii(answer[:400])
    if not body.startswith(b"\xff\xd8") and any(is_hidden(c) and c != "\r" for c in body.decode("utf-8", "replace")):
        return "the page holds characters that are not seen"
    return None


def _drip(connections: list[socket.socket]) -> None:
    """A byte more from each; the server may have let go of them."""
    for connection in connections:
        with suppress(OSError):
            connection.sendall(b"x")


def _all_at_once(port: int, paths: list[str]) -> str | None:
    """Every path asked for at the same time, each by a client of its own."""
    started = time.monotonic()
    with ThreadPoolExecutor(len(paths)) as clients:
        answers = list(clients.map(lambda path: _ask(port, _plain(port, path)), paths))
    for path, answer in zip(paths, answers, strict=True):
        if not answer.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
            return f"of {len(paths)} requests at once, {path} is answered {answer[:60]!r}"
    taken = time.monotonic() - started
    return f"{len(paths)} requests at once take {taken:.0f} s" if taken > 30 else None


def _peak(process: int) -> int:
    """Bytes of memory that a process has had at most."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"VmHWM:\s*(\d+)", status)[0]) << 10


def _port(server: forks.Running) -> int:
    for _ in range(1000):
        if found := re.search(r"http://127\.0\.0\.1:(\d+)/", server.output):
            return int(found[1])
        time.sleep(0.02)
    raise BrokenError(f"the server does not start: {server.output}")


def _plain(port: int, path: str) -> bytes:
    return f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()


def _get(port: int, path: str) -> bytes:
    """The body of a page."""
    return _ask(port, _plain(port, path)).partition(b"\r\n\r\n")[2]


def _connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def _ask(port: int, request: bytes) -> bytes:
    """The whole answer, or what comes of it in 20 seconds; it may come, and all end, before the request is sent."""
    answer = b""
    with _connect(port) as connection:
        with suppress(OSError):
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while block := connection.recv(1 << 16):
                answer += block
    return answer


def _request(rng: random.Random, port: int) -> bytes:
    lines = [f"{rng.choice(METHODS)} {rng.choice(PATHS)} HTTP/1.{rng.choice('01')}"]
    lines += [f"Host: 127.0.0.1:{port}"] if rng.random() < 0.9 else []
    lines += rng.sample(HEADERS, rng.choice((0, 0, 1, 2)))
    body = rng.choice(BODIES)
    if body and not any("Content-Length" in line for line in lines):
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/x-www-form-urlencoded"]
    request = "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + body
    return rng.randbytes(300) if rng.random() < 0.05 else request


def _put_pictures(place: Path, rng: random.Random) -> int:
    """Thumbnails of the first images: links elsewhere, too large, damaged, or nothing that is read; how many."""
    world = next(place.glob("artifacts/world/*/MANIFEST.json")).parent
    thumbs = world / "thumbs"
    thumbs.mkdir()
    names = iter((world / "train_ids.txt").read_text().splitlines())
    (thumbs / next(names)).symlink_to("/etc/passwd")
    (thumbs / next(names)).symlink_to("/dev/zero")
    (thumbs / next(names)).mkdir()
    os.mkfifo(thumbs / next(names))
    contents = [bomb(13_000), bomb(7_000), rng.randbytes(500), b""]
    contents.append(b"GIF89a\xff\xff\xff\xff\xf7\x00\x00" + bytes(900))
    contents += [_picture(form, rng) for form in PICTURES for _ in range(3)]
    for content in contents:
        (thumbs / next(names)).write_bytes(content)
    republish(world)
    return 4 + len(contents)


def _picture(form: str, rng: random.Random) -> bytes:
    """A picture with some of its bytes changed, the size in its header often among them, or cut short."""
    file = io.BytesIO()
    Image.new("RGB", (90, 60), "red").save(file, form)
    content = bytearray(file.getvalue())
    for _ in range(rng.choice((1, 3, 30))):
        content[rng.randrange(min(len(content), rng.choice((40, 200, 10**6))))] = rng.choice(
            (0, 255, rng.randrange(256))
        )
    return bytes(content[: rng.choice((None, None, len(content) // 2))])


KINDS = [Kind("requests", 12, f"`aoq browse` under {REQUESTS} hostile requests each", hostile_requests)]
