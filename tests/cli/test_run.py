"""`aoq run`, `study` and `evaluate`: the tasks and exit codes of Luigi."""

import json
from pathlib import Path

from aoq.pipeline.cli.options import STAGES
from aoq.pipeline.cli.run import _exit_code
from aoq.pipeline.settings import read_shipped_settings
from aoq.tasks.stages import TASKS
from tests.cli.conftest import TINY
from tests.programs import Program


def ended(*command):
    return Program(command, TINY.parent.parent).wait()


def made(root):
    return {path.parent for path in root.glob("*/*/MANIFEST.json")}


def test_every_stage_has_a_task():
    assert tuple(TASKS) == STAGES


def test_it_makes_what_luigi_makes_and_says_how_to_go_on(root):
    before = made(root)
    run = ended("aoq", "run", TINY, "--threads", 1, "--artifact-root", root)
    assert run.returncode == 0, run.stderr
    (student,) = made(root) - before
    assert student.parent.name == "second_round"
    assert run.stdout == f"{student}\n"
    assert f"next: aoq run {TINY} --artifact-root {root} --round control\n" not in run.stderr
    assert f"next: aoq run {TINY} --round control --artifact-root {root}\n" in run.stderr
    assert f"  or: aoq results {TINY} --artifact-root {root}\n" in run.stderr
    assert (root / "runs" / "tiny" / "second_round").resolve() == student
    assert json.loads((student / "MANIFEST.json").read_text())["metrics"]["rsum"] > 0
    again = ended("luigi", "--module", "tasks", "SecondRound", "--experiment", TINY, "--artifact-root", root)
    assert again.returncode == 0
    assert "second_round of tiny exists" in again.stderr
    assert made(root) == before | {student}
    evaluated = ended("aoq", "evaluate", TINY, "--threads", 1, "--artifact-root", root, "--workers", 2)
    assert evaluated.returncode == 0, evaluated.stderr
    assert Path(evaluated.stdout.strip()).parent.name == "evaluation"
    assert f"next: aoq results {TINY}" in evaluated.stderr
    control = ended("aoq", "run", TINY, "--round", "control", "--threads", 1, "--artifact-root", root)
    assert f"next: aoq results {TINY} --artifact-root {root}\n" in control.stderr  # both that it compares are there


def test_what_follows_the_at_sign_is_an_override(aoq, root):
    known = aoq("explain", f"{TINY}@mining.h_images=7", "hard_negatives", root=root).stdout
    assert known == aoq("explain", TINY, "hard_negatives", "--override", "mining.h_images=7", root=root).stdout


def test_a_failed_task_ends_as_luigi_does(root):
    table = next(root.glob("hard_negatives/*/table/i2t.parquet"))
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    failed = ended("aoq", "run", TINY, "--artifact-root", root)
    assert "was changed after it was published" in failed.stderr
    assert failed.returncode == 30


def test_codes_are_those_of_luigi_cfg():
    read_shipped_settings()
    codes = {"SUCCESS": 0, "SUCCESS_WITH_RETRY": 0, "FAILED": 30, "NOT_RUN": 25, "MISSING_EXT": 20}
    codes |= {"SCHEDULING_FAILED": 35, "FAILED_AND_SCHEDULING_FAILED": 35}
    assert {status: _exit_code(status) for status in codes} == codes


def test_a_study_is_made_and_shown(tmp_path):
    study = tmp_path / "small.toml"
    text = f'baseline = "online"\nseeds = [0]\n[models]\ntiny = "{TINY}@second_round.epochs=2"\n'
    study.write_text(f'{text}[arms.online]\nchange.second_round.loss.name = "online"\n')
    run = ended("aoq", "study", study, "--threads", 1, "--artifact-root", tmp_path / "root")
    assert run.returncode == 0, run.stderr
    assert (Path(run.stdout.strip()) / "table.md").is_file()
    assert f"next: aoq results --study {study}" in run.stderr
