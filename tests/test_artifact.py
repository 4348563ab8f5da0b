"""Artefacts: keys that depend on what shapes them, publishing in one step, errors one can act on."""

import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import INPUTS, MANIFEST_FILE, UNITS
from aoq.pipeline.files import LOCK, digest, write_atomically


def artifact(root, **ingredients):
    return Artifact(root, "stage", 1, ingredients)


def build(made, text="payload"):
    with made.building() as work:
        (work.directory / "sub").mkdir(exist_ok=True)
        (work.directory / "sub" / "file.txt").write_text(text)
        work.notes["metrics"] = {"rsum": 1.0}
    return made


def test_keys_follow_content_not_order(tmp_path):
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": [1, 2], "a": 1})
    assert artifact(tmp_path, h=300).key != artifact(tmp_path, h=301).key
    upstream = artifact(tmp_path, seed=1), artifact(tmp_path, seed=2)
    downstream = [Artifact(tmp_path, "next", 1, {}, (one,)).key for one in upstream]
    assert downstream[0] != downstream[1]
    assert Artifact(tmp_path, "next", 2, {}, upstream[:1]).key != downstream[0]


def test_a_build_is_published_whole_with_its_manifest(tmp_path):
    made = artifact(tmp_path, h=300)
    assert not made.exists()
    build(made)
    assert made.exists()
    assert not made.work.exists()
    manifest = made.manifest()
    assert manifest["recipe"]["ingredients"] == {"h": 300}
    assert manifest["files"]["sub/file.txt"]["bytes"] == len("payload")
    assert manifest["metrics"] == {"rsum": 1.0}
    assert list(made.problems()) == []
    with made.building() as work:
        assert work is None


def test_a_failure_publishes_nothing_and_keeps_the_work(tmp_path):
    made = artifact(tmp_path)
    with suppress(RuntimeError), made.building() as work:
        (work.directory / "shard").write_text("done")
        raise RuntimeError
    assert not made.exists()
    with made.building() as work:
        assert (work.directory / "shard").read_text() == "done"
    assert made.exists()


@pytest.mark.parametrize("damaged", ["", "sub/file.txt", MANIFEST_FILE])
def test_what_a_run_had_finished_when_it_was_killed_is_published_if_it_is_whole(tmp_path, monkeypatch, damaged):
    made = artifact(tmp_path)

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            build(made)
    for name, text in (
        (INPUTS, '{"inputs": {}}'),
        (f"{UNITS}/payload", "payload"),
        (f".{MANIFEST_FILE}.work/{LOCK}", ""),
    ):
        (made.work / name).parent.mkdir(exist_ok=True)
        (made.work / name).write_text(text)  # which the kill may have come before
    (made.work / "sub" / ".file.txt.work").mkdir()  # whose lock was gone already
    if damaged:
        (made.work / damaged).write_text("other")
    with made.building() as work:
        assert (work is None) == (damaged == "")
    assert list(made.problems()) == []
    assert {path.name for path in made.path.rglob("*")} == {"sub", "file.txt", MANIFEST_FILE}


def failed(number, path="artifacts/file"):
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (failed(errno.EROFS), "choose a writable one"),
        (failed(errno.EACCES), "choose a writable one"),
        (failed(errno.ENOLCK), "choose a file system that locks files"),
        (failed(errno.ENOSPC), "free some space"),
        (OSError("8 requested and 3 written"), r"3 written at .* free some space"),  # numpy's
        (failed(errno.EACCES, "/data/caps.txt"), r"^\[Errno 13\] Permission denied: '/data/caps.txt'$"),
        (FileNotFoundError("weights.pt does not exist."), r"^weights\.pt does not exist\.$"),
    ],
)
def test_disks_that_refuse_are_explained_and_errors_elsewhere_stay(tmp_path, monkeypatch, error, message):
    monkeypatch.chdir(tmp_path)
    made = artifact(Path("artifacts"))
    with pytest.raises(type(error), match=message) as raised, made.building():
        raise error
    assert error.errno in (raised.value.errno, None)
    assert not made.exists()


def test_writing_atomically_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


def test_links_follow_the_latest_and_what_a_kill_left_beside_them_goes(tmp_path):
    first, second = build(artifact(tmp_path, a=1)), build(artifact(tmp_path, a=2))
    alias = tmp_path / "runs" / "demo" / "stage"
    for made in (first, second, second):
        made.link(alias)
        assert alias.resolve() == made.path
        assert [*alias.parent.iterdir()] == [alias]
        alias.with_name(".stage.work").mkdir()
        (alias.with_name(".stage.work") / LOCK).touch()


def test_a_root_that_is_a_file_is_named_with_a_remedy(tmp_path):
    root = tmp_path / "artifacts"
    root.write_text("not a folder")
    with pytest.raises(
        OSError, match=r"cannot write below .*artifacts: a folder cannot be created .* choose a writable one"
    ):
        build(artifact(root))
