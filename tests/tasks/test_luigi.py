"""The chain under Luigi: from any directory, with real exit codes, once, and again after a kill."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import tasks
from tests.cli.conftest import run as aoq
from tests.programs import Program, processes_of, wait_for
from tests.tasks.conftest import ROOT, TINY

NOISY = TINY.with_name("noisy.toml")


def manifests(root):
    return {path.parent.parent.name: json.loads(path.read_text()) for path in root.glob("*/*/MANIFEST.json")}


def weights(root):
    return {stage: m["final_weights_sha256"] for stage, m in manifests(root).items() if "final_weights_sha256" in m}


def counts(root):
    return Counter(path.parent.parent.name for path in root.glob("*/*/MANIFEST.json"))


def test_both_rounds_from_another_directory_then_nothing_to_do(luigi, root, tmp_path):
    made = manifests(root)
    assert set(made) == {"world", "dataset", "first_round", "embeddings", "hard_negatives", "second_round"}
    links = root / "runs" / "tiny"
    assert (links / "hard_negatives" / "table" / "i2t.parquet").is_file()
    assert not (root / "hard_negatives" / "shards").exists()
    target = os.readlink(links / "second_round")
    (links / "second_round").unlink()
    (links / "second_round").symlink_to("elsewhere")  # what the name meant last
    again = luigi("SecondRound", cwd=tmp_path)
    assert again.returncode == 0
    assert os.readlink(links / "second_round") == target
    assert "second_round of tiny exists" in again.stderr
    assert "done" not in again.stderr
    assert manifests(root) == made


def test_changing_h_mines_again_but_trains_no_teacher(luigi, root, tmp_path):
    before = weights(root)
    (tmp_path / "tiny.toml").write_text(TINY.read_text().replace("h_captions = 20", "h_captions = 10"))
    changed = luigi("HardNegatives", experiment=tmp_path / "tiny.toml")
    assert changed.returncode == 0
    assert "making hard_negatives of tiny again: h_captions 10, was 20\n" in changed.stderr
    assert weights(root) == before
    assert (counts(root)["hard_negatives"], counts(root)["embeddings"]) == (2, 1)
    assert "first_round of" not in changed.stderr


def test_an_ensemble_trains_its_members_and_is_shown(luigi, root, tmp_path):
    both = tmp_path / "both.toml"
    members = [str(TINY), f'{TINY}@second_round.loss.name="offtri"']
    both.write_text(f"[ensemble]\nmembers = {members}\n")
    made = luigi("Evaluation", experiment=both)
    assert made.returncode == 0, made.stderr
    assert [counts(root)[stage] for stage in ("hard_negatives", "evaluation", "second_round")] == [1, 1, 2]
    shown = aoq("results", both, "--artifact-root", root)
    assert {"adapoffquin", "offtri", "ensemble"} <= set(shown.stdout.split())


def test_a_student_reuses_its_teachers_table_with_a_vocabulary_of_its_own(luigi, root, tmp_path):
    text, student = TINY.read_text().replace('"vsepp"', '"scan"'), tmp_path / "student.toml"
    rounds = text[text.index("[first_round]") : text.index("[second_round]")]
    more = "\n[screen]\nsame_text = true\n"
    student.write_text(f'teacher = "{TINY}"\ndataset.min_count = 1\n{text.replace(rounds, "")}{more}')
    (needed,) = tasks.FirstRound(experiment=str(student), artifact_root=str(root)).requires()
    assert (needed.stage, needed.experiment) == ("dataset", str(TINY))
    for look in (["inspect", str(student), "--image", "3"], ["estimate", "--experiment", str(student)]):
        aoq(*look, "--artifact-root", root)
    assert counts(root)["dataset"] == 1
    made = luigi("SecondRound", experiment=student)
    assert made.returncode == 0, made.stderr
    once = dict.fromkeys(("world", "first_round", "embeddings", "hard_negatives", "screen"), 1)
    assert counts(root) == {**once, "dataset": 2, "second_round": 2}
    teacher = luigi("HardNegatives", experiment=student)
    assert teacher.returncode == 0
    assert "hard_negatives of student exists" in teacher.stderr


POINTS = [
    "first_round/.*.work/metrics.jsonl",
    "first_round/.*.work/shards/last.ckpt",
    "embeddings/.*.work",
    "hard_negatives/.*.work",
    "second_round/.*.work/shards/last.ckpt",
]


def killed_at(root, point, command):
    running = Program(command, ROOT)
    wait_for(lambda: list(root.glob(point)))
    running.kill()


def test_kill_9_and_run_again_ends_at_the_same_weights(command, luigi, tmp_path, whole):
    root = tmp_path / "cut"
    for point in POINTS:
        killed_at(root, point, command("SecondRound", root=root))
    again = luigi("SecondRound", root=root)
    assert again.returncode == 0, again.stderr
    assert weights(root) == weights(whole)


def test_two_networks_are_taught_killed_and_evaluated_together(command, luigi, tmp_path):
    root = tmp_path / "made"
    killed_at(root, POINTS[-1], command("SecondRound", experiment=NOISY))
    made = luigi("Evaluation", experiment=NOISY)
    assert made.returncode == 0, made.stderr
    assert set(manifests(root)) == {"world", "dataset", "second_round", "evaluation"}
    taught = manifests(root)["second_round"]
    assert {"model.safetensors", "peer.safetensors", "clean_pairs.parquet"} <= taught["files"].keys()
    assert manifests(root)["evaluation"]["metrics"] == taught["metrics"]
    assert luigi("Control", experiment=NOISY).returncode == 0
    shown = aoq("results", NOISY, "--artifact-root", root)
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:3]] == ["control", "co-taught"]
    assert "co-teaching" in shown.stdout


def test_runs_at_once_make_each_artefact_once(command, tmp_path):
    """Two of them are the same command, which Luigi's own lock would refuse."""
    overrides = ("", "", "mining.h_captions=9")
    for running in [Program(command("HardNegatives", "--override", override), ROOT) for override in overrides]:
        assert running.wait().returncode == 0
    made = dict.fromkeys(("world", "dataset", "first_round", "embeddings"), 1)
    assert counts(tmp_path / "made") == {**made, "hard_negatives": 2}


AS_ANOTHER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
"""May read what only root may, such as this Python, but write nothing of others'."""
READING = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_of_the_machine_is_not_in_the_way(command, tmp_path):
    """Luigi's lock would lie in a folder of the temporary directory that belongs to whoever came first."""
    temporary, own = tmp_path / "tmp", tmp_path / "own"
    for folder, mode in ((temporary, 0o1777), (own, 0o777)):
        folder.mkdir()
        folder.chmod(mode)
    (own / "luigi.cfg").write_text("[engine]\nthreads = 1\n")
    variables = {"TMPDIR": str(temporary), "HOME": str(own)}
    first = Program(command("DemoWorld", root=tmp_path / "made"), own, variables).wait()
    line = [*AS_ANOTHER, *READING, *command("DemoWorld", root=own / "made")]
    environment = {**os.environ, **variables}
    second = subprocess.run(line, cwd=own, env=environment, capture_output=True, text=True, timeout=300)
    for made, root in ((first, tmp_path / "made"), (second, own / "made")):
        assert made.returncode == 0, made.stderr
        assert "world" in manifests(root)
    assert (own / "made").stat().st_uid == 65534


def test_no_orphan_survives_sigterm(command, tmp_path):
    running = Program(command("FirstRound", "--override", "first_round.epochs=2000"), ROOT)
    wait_for(lambda: list((tmp_path / "made").glob("first_round/.*.work/metrics.jsonl")))
    assert len(processes_of(running.pid)) > 1
    running.terminate()
    ended = running.wait(30)
    assert ended.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in ended.stderr
    assert ended.stderr.endswith("\nstopped; finished work is kept; run the same command again to resume\n")
    wait_for(lambda: not processes_of(running.pid), seconds=10)


def test_the_death_of_a_task_is_explained(command, tmp_path):
    running = Program(command("FirstRound", "--override", "first_round.epochs=2000"), ROOT)
    wait_for(lambda: "step" in "".join(log.read_text() for log in tmp_path.glob("*/first_round/.*.work/metrics.jsonl")))
    (child,) = (process for process in processes_of(running.pid) if process != running.pid)
    os.kill(child, signal.SIGKILL)
    ended = running.wait()
    assert ended.returncode == 30
    death = r"first_round of tiny@\S+ was killed by SIGKILL, probably out of memory after step [\d,]+ \(epoch \d+\)\."
    assert re.search(death, ended.stderr)
    assert "lower batch_size, set chunk, or take fewer --workers" in ended.stderr


def test_workers_share_the_cores(luigi, tmp_path):
    made = luigi("FirstRound", "--engine-threads", "0", "--workers", "2", "--override", "first_round.warmup=[]")
    assert made.returncode == 0, made.stderr
    manifest = manifests(tmp_path / "made")["first_round"]
    assert manifest["threads"] == max(1, len(os.sched_getaffinity(0)) // 2)
    assert re.search(r"first_round of tiny@\S+: epoch 1: dev rsum", made.stderr)


def test_what_failed_is_said_last(luigi, tmp_path):
    np.save(tmp_path / "short.npy", np.arange(17))
    noise = f'dataset.noise.file="{tmp_path / "short.npy"}"'
    made = luigi("Dataset", "--override", noise)
    assert made.returncode != 0
    *_, error, failed, task = made.stderr.splitlines()
    assert "error: " in error
    assert failed.endswith(" 1 failed:")
    assert task == f"    - 1 Dataset(experiment={TINY}, override={noise})"


def test_mistakes_end_with_a_clear_line_and_a_code(luigi, tmp_path):
    for arguments, experiment, message in (
        (["--override", "mining.top=3"], TINY, "allowed keys"),
        ([], "demmo", "unknown experiment 'demmo'; did you mean 'demo'?"),
        (["--data-root", str(tmp_path)], "f30k_vsrn", "f30k_precomp"),
    ):
        failed = luigi("SecondRound", *arguments, experiment=experiment)
        assert failed.returncode in (30, 35, 40)
        assert message in failed.stderr
        assert "Traceback" not in failed.stderr


def test_help_describes_each_option_once(luigi):
    shown = luigi("SecondRound", "--help", experiment="demo").stdout
    for name in ("experiment", "override", "data-root", "artifact-root"):
        assert shown.count(f"\n  --{name} ") == 1
    assert "--SecondRound-" not in shown


@pytest.mark.slow
def test_torchrun_trains_on_all_and_luigi_runs_in_one(command, luigi, tmp_path):
    """Two processes that torchrun starts end where two end that the training starts."""
    torchrun = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", "2"]
    _, _, _, *given = command("SecondRound", root=tmp_path / "torchrun")
    run, environment = [*torchrun, "-m", "aoq.tasks", *given], {**os.environ, "OMP_NUM_THREADS": "1"}
    made = subprocess.run(run, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    alone = luigi("SecondRound", "--engine-processes", "2", root=tmp_path / "started")
    assert alone.returncode == 0, alone.stderr
    one, other = (manifests(tmp_path / root) for root in ("torchrun", "started"))
    for stage in ("first_round", "second_round"):
        assert one[stage]["processes"] == other[stage]["processes"] == 2
    assert weights(tmp_path / "torchrun") == weights(tmp_path / "started")
