"""Nothing is published that was computed from other bytes than those that its manifest names."""

import ast
import errno
import json
import os
import time
from pathlib import Path

import pytest

import aoq
from aoq.pipeline import files
from aoq.pipeline.artifact import Artifact
from aoq.pipeline.build import INPUTS, MANIFEST_FILE, code_sha256, code_versions, content_digest, planned_file, seal
from aoq.pipeline.files import LOCK, file_sha256, known_sha256
from tests.republish import republish

ROOT = Path(__file__).parent.parent


@pytest.fixture
def table(tmp_path):
    made = Artifact(tmp_path, "table", 1, {})
    with made.building() as work:
        (work.directory / "lists").write_bytes(b"payload")
        (work.directory / "more").mkdir()
        (work.directory / "more" / "file").write_bytes(b"more")
    return made


@pytest.fixture
def student(table):
    return Artifact(table.root, "student", 1, {}, (table,))


def build(student, table, then):
    with student.building() as work:
        (work.directory / "checkpoint").write_bytes((table.opened() / "lists").read_bytes())
        then()


def flip(file):
    """Flip a bit as a disk would: size and times stay."""
    times, content = file.stat(), bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    file, hashed = tmp_path / "file", []
    file.write_bytes(b"old")
    monkeypatch.setattr(files, "file_sha256", lambda path: hashed.append(path) or file_sha256(path))
    monkeypatch.setattr(files, "UNSURE_NS", 0)
    time.sleep(0.01)
    assert known_sha256(file) == known_sha256(file) == file_sha256(file)
    assert len(hashed) == 1
    flip(file)
    assert known_sha256(file) == file_sha256(file)
    monkeypatch.undo()
    for content in (b"1", b"2", b"3"):  # a file that just changed is not remembered
        file.write_bytes(content)
        assert known_sha256(file) == file_sha256(file)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda folder: flip(folder / "lists"), "lists was changed after it was published"),
        (lambda folder: (folder / "more" / "file").unlink(), "more/file is missing"),
        (lambda folder: (folder / "new").touch(), "new is not in the manifest"),
    ],
)
def test_what_is_damaged_is_not_opened(table, student, damage, what):
    assert table.opened() == table.path
    damage(table.path)
    with pytest.raises(ValueError, match=rf"{what}; delete .*{table.key} and run again"):
        table.opened()
    with pytest.raises(ValueError, match=what), student.building():
        table.opened()
    assert not student.exists()


def test_a_manifest_names_what_was_read_and_nothing_that_a_killed_write_left_is_published(table, student):
    (left := student.work / f".{INPUTS}.work").mkdir(parents=True)
    (left / LOCK).touch()
    with student.building():
        table.opened()
    assert student.manifest()["inputs"] == {f"table/{table.key}": content_digest(table.manifest())}
    assert [path.name for path in student.path.iterdir()] == [MANIFEST_FILE]


def test_what_changes_while_it_is_read_is_not_published_and_its_work_is_gone(table, student):
    with pytest.raises(ValueError, match=r"while it was read: .*lists was changed"):
        build(student, table, lambda: flip(table.path / "lists"))
    assert not student.exists()
    assert not student.work.exists()


def test_an_input_that_cannot_be_read_for_now_costs_no_finished_work(table, student, monkeypatch):
    def unplugged(path):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    with pytest.raises(OSError, match=r"handle: .*lists"):
        build(student, table, lambda: monkeypatch.setattr("aoq.pipeline.files.known_sha256", unplugged))
    assert (student.work / "checkpoint").exists()


def test_what_unfit_work_was_begun_on_is_deleted_last(table, student, monkeypatch):
    student.work.mkdir(parents=True)
    for name in "0123456789":
        (student.work / name).touch()
    (student.work / INPUTS).write_text(json.dumps({"inputs": {f"table/{table.key}": "another"}}))
    unlink = Path.unlink

    def killed(path, **options):
        if path.name == INPUTS:
            raise KeyboardInterrupt
        unlink(path, **options)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt), student.building():
        table.opened()
    assert [path.name for path in student.work.iterdir()] == [INPUTS]


def test_work_goes_on_from_what_it_was_begun_on(table, student):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(student, table, interrupt)
    (table.path / "lists").write_bytes(b"another")  # as if it had been made again, with other bytes
    republish(table.path)
    with pytest.raises(ValueError, match="begun on another table/"), student.building():
        table.opened()
    assert not student.work.exists()
    with student.building():
        table.opened()
    assert student.exists()


def test_a_damaged_memory_of_what_was_read_costs_the_work_alone_and_a_stage_may_clear_it(table, student):
    student.work.mkdir(parents=True)
    (student.work / INPUTS).write_text("[1")
    with pytest.raises(ValueError, match="run again"), student.building():
        pass
    assert not student.work.exists()
    student.work.mkdir()
    (student.work / INPUTS).write_text(json.dumps({"inputs": {f"table/{table.key}": "another"}}))
    with student.building() as work:
        work.clear()
        table.opened()
    assert student.exists()


def test_a_users_file_is_the_one_that_was_planned(tmp_path, student):
    (tmp_path / "weights").write_bytes(b"planned")
    sha256 = file_sha256(tmp_path / "weights")
    with student.building():
        assert planned_file(tmp_path, "weights", sha256).read_bytes() == b"planned"
    assert student.manifest()["inputs"] == {"data/weights": sha256}
    flip(tmp_path / "weights")
    with pytest.raises(ValueError, match="weights was changed after the run was planned; run again"):
        planned_file(tmp_path, "weights", sha256)


@pytest.mark.parametrize("content", [b"", b"{}", b"[" * 100_000, b'{"files": 1e999}', b'\xff{"a": 1}'])
def test_what_is_no_manifest_ends_in_a_sentence(table, content):
    table.manifest_path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"{table.manifest_path} is damaged or not .*; delete {table.path} and run"):
        table.manifest()


@pytest.mark.parametrize(
    "change",
    [
        {"finished": "\x1b[31m"},
        {"files": {"lists": {"bytes": 10**30, "sha256": ""}}},
        {"files": []},
        {"files": {"../../passwd": {"bytes": 1, "sha256": ""}}},
        {"recipe": {"ingredients": {"other": 1}}},
        {"key": "another"},
        {"metrics": {"rsum": "high"}},
    ],
)
def test_hostile_values_end_in_a_sentence_though_they_are_sealed(table, change):
    manifest = table.manifest()
    for name, value in change.items():
        manifest[name] = {**manifest.get(name, {}), **value} if isinstance(value, dict) else value
    table.manifest_path.write_text(json.dumps({**manifest, "seal": seal(manifest)}))
    with pytest.raises(ValueError, match=rf"{table.manifest_path} is damaged or not"):
        table.manifest()


def test_every_digit_of_a_manifest_is_sealed_and_one_from_before_is_read(table):
    manifest = table.manifest()
    table.manifest_path.write_text(json.dumps({**manifest, "packages": {}}))
    with pytest.raises(ValueError, match="changed after it was written"):
        table.manifest()
    old = {name: value for name, value in manifest.items() if name not in ("seal", "inputs")}
    table.manifest_path.write_text(json.dumps(old))
    assert table.opened() == table.path


def _reads(path):
    """Ways to a file that go past the check."""
    makes = path.parent.name == "stages" and path.name not in ("chain.py", "data.py", "splits.py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in ("path", "manifest_path") and makes:
            yield f"line {node.lineno}: .{node.attr}"
        if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Attribute) and node.left.attr == "path":
            yield f"line {node.lineno}: .path /"
        if isinstance(node, ast.ImportFrom) and "open_split" in [name.name for name in node.names]:
            yield f"line {node.lineno}: open_split"


@pytest.mark.parametrize("room", ["stages", "report", "browse"])
def test_what_stages_made_is_read_by_opened_and_data_by_open_checked(room):
    """`Artifact.path` says where something is; whoever reads there asks `Artifact.opened()`."""
    found = {str(path): list(_reads(path)) for path in (ROOT / "pipeline" / room).glob("*.py")}
    found.pop(str(ROOT / "pipeline" / "stages" / "splits.py"), None)  # it opens splits for all others
    assert not {path: ways for path, ways in found.items() if ways}


def test_what_may_never_end_is_not_hashed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(ValueError, match=r"is not a regular file"):
            file_sha256(path)


def test_changed_and_renamed_modules_are_other_code(tmp_path):
    assert code_versions()["aoq's code"] == code_sha256(Path(aoq.__file__).parent)[:12]
    for name in ("models/scan.py", "pipeline/search/limits.py"):
        (module := tmp_path / name).parent.mkdir(parents=True)
        module.write_text("rows = 1\n")
    seen = {code_sha256(tmp_path)}
    module.write_text("rows = 2\n")
    seen.add(code_sha256(tmp_path))
    module.rename(module.with_name("limit.py"))
    assert len(seen | {code_sha256(tmp_path)}) == 3
