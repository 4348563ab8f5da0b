"""The server answers its own pages alone, and they may do only what its policy allows."""

import re
import socket

import pytest

from aoq.pipeline.browse import app


def test_every_answer_forbids_what_pages_do_not_need(browse, source):
    for address in ("/", "/image/1", "/image/99", f"/picture/{source.train.key}/0", "/static/style.css", "/nowhere"):
        with browse.get(address) as answer:
            headers = answer.headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
        assert "; script-src 'self'; " in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


@pytest.mark.parametrize("host", ["evil.example:8765", "127.0.0.1:80", "127.0.0.1", "localhost.evil.example:8765"])
def test_other_names_are_refused(browse, host):
    for address in ("/", "/static/style.css"):
        with browse.client.get(address, base_url=f"http://{host}") as answer:
            assert answer.status_code == 403


@pytest.mark.parametrize("host", ["", "a b", "[::1", "x\x00", "a/b", "evil.example@127.0.0.1:8765", "x" * 64, "a..b"])
def test_names_that_are_none_are_refused(browse, host):
    answer = browse.client.get("/", environ_overrides={"HTTP_HOST": host, "SERVER_NAME": "", "SERVER_PORT": "8765"})
    assert answer.status_code in (400, 403)
    assert "Back to the start" in answer.text


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"token": "x"}, 403, "load the page again"),
        ({"token": "é"}, 403, "load the page again"),
        *(
            ({"token": token}, 403, "load the page again")
            for token in ("", "\x00", "\u0661" * 43, "x" * 50_000, "*", "%s")
        ),
        ({"image": "70"}, 404, "images 0 to 69"),
        ({"caption": "x"}, 404, "captions 0 to 349"),
        ({"match": "perhaps"}, 400, "choose one of yes, no, none"),
        ({"image": "1", "caption": "5"}, 400, "belongs to image 1"),
        ({"back": "https://evil.example/"}, 400, "of this server only"),
        ({"back": "//evil.example/"}, 400, "of this server only"),
        ({"back": "/\\evil.example/"}, 400, "of this server only"),
        *(({"back": f"{lead}/evil.example/"}, 400, "of this server only") for lead in ("\t/", "\n/", "/\t")),
        ({"back": "/x\r\nSet-Cookie: a=1"}, 400, "of this server only"),
    ],
)
def test_marks_that_make_no_sense_write_nothing(browse, changes, code, message):
    answer = browse.mark(**{"image": "1", "caption": "30", **changes})
    assert answer.status_code == code
    assert message in answer.text
    assert not browse.marks.known.path.exists()


def test_other_pages_cannot_mark(browse):
    for token in (browse.token[:-1], f"{browse.token}x", browse.token.swapcase()):
        assert browse.mark(1, 30, token=token).status_code == 403
    form = {"token": browse.token, "image": 1, "caption": 30, "match": "yes"}
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999"):
        answer = browse.client.post("/mark", data=form, base_url="http://127.0.0.1:8765", headers={"Origin": origin})
        assert answer.status_code == 403
    assert browse.get("/mark").status_code == 405
    assert not browse.marks.known.path.exists()


def test_a_mark_shows_wherever_the_pair_does(browse, source):
    caption = int(source.tables[0].lists.i2t.negative_ids[7, 0])
    assert browse.mark(7, caption, back="/image/7#n0").headers["Location"] == "/image/7#n0"
    for address in ("/image/7", f"/caption/{caption}/listed", "/image/7?show=marked"):
        assert browse.text(address).count("✓ true match") == 1
    assert "1 pair is marked" in browse.text("/")
    assert re.search(r'aria-pressed="true"', browse.text("/image/7"))
    browse.mark(7, caption, match="none")
    assert "✓ true match" not in browse.text("/image/7")


def test_marks_are_taken_back_one_by_one(browse):
    assert browse.post("/undo").status_code == 400
    said = [(7, 30, "yes"), (7, 30, "no"), (3, 40, "no"), (7, 30, "none")]
    states = [(None, None)]
    for image, caption, match in said:
        browse.mark(image, caption, match=match, back=f"/image/{image}")
        states.append((browse.marks.judgement(7, 30), browse.marks.judgement(3, 40)))
    assert states[1:] == [(True, None), (False, None), (False, False), (None, False)]
    for (image, _, _), state in zip(said[::-1], states[-2::-1], strict=True):
        assert "Undo" in browse.text("/")
        assert browse.post("/undo").headers["Location"] == f"/image/{image}"
        assert (browse.marks.judgement(7, 30), browse.marks.judgement(3, 40)) == state
    assert "Undo" not in browse.text("/")
    assert browse.post("/undo", token="x").status_code == 403


def test_a_request_without_host_is_refused_and_no_version_is_named(served):
    host, port = served.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        head = b"".join(iter(lambda: client.recv(1 << 16), b"")).partition(b"\r\n\r\n")[0].decode()
    assert head.startswith("HTTP/1.1 403 ")
    assert "\r\nServer: aoq\r\n" in head


def test_silent_clients_are_let_go(served, monkeypatch):
    monkeypatch.setattr(app._Handler, "timeout", 0.3)
    host, port = served.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert client.recv(1 << 16) == b""
