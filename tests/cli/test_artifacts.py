"""Commands, as users type them, and their output."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from aoq.pipeline.build import seal
from aoq.pipeline.engine import Engine
from aoq.pipeline.evaluation.ranks import write_ranks
from aoq.pipeline.evaluation.retrieval import Ranks, summarise
from aoq.pipeline.files import scratch_beside
from aoq.pipeline.stages.plan import MAKERS, plan
from tests.cli.conftest import TINY, only, run
from tests.stages.conftest import chain_of


def test_verify_finds_changed_files_and_other_upstreams(aoq, root):
    manifest = only(root, "embeddings") / "MANIFEST.json"
    said = json.loads(manifest.read_text()) | {"seconds": 99.0}  # as if it had been made again alike
    manifest.write_text(json.dumps(said | {"seal": seal(said)}))
    assert "artefacts are whole" in aoq("verify", TINY, root=root).stdout
    table = only(root, "hard_negatives") / "table" / "i2t.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    said["files"]["images.npy"]["sha256"] = "0" * 64
    manifest.write_text(json.dumps(said))
    found = aoq("verify", TINY, root=root, code=1)
    assert "i2t.parquet was changed" in found.stderr
    assert "it was changed after it was written" in found.stderr
    manifest.write_text(json.dumps({**said, "seal": seal(said)}))
    assert "made from another version of embeddings" in aoq("verify", TINY, root=root, code=1).stderr
    manifest.write_text(json.dumps({name: value for name, value in said.items() if name not in ("seal", "inputs")}))
    assert "made from another version of embeddings" in aoq("verify", TINY, root=root, code=1).stderr


@pytest.mark.parametrize(("better", "seconds"), [(10, 10), (0, 10), (10, 1)])
def test_results_end_with_a_verdict(aoq, root, tmp_path, better, seconds):
    chain, rng = plan(str(TINY), data_root=tmp_path, artifact_root=root), np.random.default_rng(0)
    theirs = Ranks(rng.integers(0, 20, 20), rng.integers(0, 20, 100))
    ours = Ranks(np.maximum(0, theirs.i2t - better), np.maximum(0, theirs.t2i - better))
    for stage, ranks in (("second_round", ours), ("control", theirs)):
        with chain[stage].building() as build:
            write_ranks(build.directory / "dev_ranks.parquet", ranks)
            each = 2 * seconds if stage == "second_round" else seconds
            windows = [{"step": 10, "steps_per_second": 10 / each}, {"step": 30, "steps_per_second": 20 / each}]
            lines = [*windows, {"step": 30, "dev_rsum": 1.0}]
            (build.directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            build.notes["metrics"] = summarise(ranks)
    shown = aoq("results", TINY, root=root).stdout
    (line,) = [line for line in shown.splitlines() if line.startswith("round two - control: +")]
    assert "20 dev images, one seed" in line
    assert ("not distinguishable" in line) == (better == 0)
    assert line.endswith("; 2.00 times its training time") == (seconds == 10)  # shorter ones tell nothing
    write_ranks(chain["control"].path / "dev_ranks.parquet", Ranks(theirs.i2t[::-1], theirs.t2i))
    assert "was changed after it was published" in aoq("results", TINY, root=root, code=1).stderr


@pytest.fixture
def gc(aoq, root, monkeypatch):
    """`aoq gc` on the copy, where the only experiment is the demo."""
    monkeypatch.setattr("aoq.pipeline.cli.gc.names_in", lambda: ["demo"])
    return lambda *arguments, code=0: aoq("gc", *arguments, root=root, code=code)


def test_gc_keeps_what_links_lead_to(gc, root):
    made = len(list(root.glob("*/*/MANIFEST.json")))
    assert "nothing to free" in gc().stdout
    (root / "runs" / "tiny" / "hard_negatives").unlink()
    listed = gc().stdout
    assert "1 of" in listed
    assert len(list(root.glob("*/*/MANIFEST.json"))) == made
    assert "freed" in gc("--delete").stdout
    assert not list(root.glob("hard_negatives/*/MANIFEST.json"))
    assert len(list(root.glob("*/*/MANIFEST.json"))) == made - 1
    unfinished = root / "first_round" / ".abc.work"
    unfinished.mkdir()
    assert "nothing to free" in gc().stdout
    gc("--delete", "--unfinished")
    assert not unfinished.exists()


def test_gc_follows_links_beside_a_root_that_is_a_link_or_was_configured(gc, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "artifacts").symlink_to(root)
    assert "nothing to free" in run("gc").stdout  # linked below the root, which was not in [paths] then
    shutil.rmtree(root / "runs")
    chain = chain_of(root=tmp_path / "artifacts")
    chain["hard_negatives"].link(tmp_path / "runs" / "tiny" / "hard_negatives")
    assert (tmp_path / "runs" / "tiny" / "hard_negatives" / "table").is_dir()
    (root / "hard_negatives").rename(tmp_path / "tables")
    (root / "hard_negatives").symlink_to(tmp_path / "tables")
    assert "nothing to free" in run("gc").stdout


def test_gc_drops_the_links_of_a_run(gc, root):
    assert "there is no run 'other' in" in gc("--run", "other", code=1).stderr
    made = [*root.glob("*/*/MANIFEST.json")]
    assert "aoq gc --delete --run=tiny" in gc("--run", "tiny").stdout
    assert [*root.glob("*/*/MANIFEST.json")] == made
    gc("--run", "tiny", "--delete")
    assert not (root / "runs" / "tiny").exists()
    assert len([*root.glob("*/*/MANIFEST.json")]) < len(made)


def test_gc_keeps_the_indexes_of_needed_tables(gc, root):
    pytest.importorskip("faiss")
    searched = 'mining.search="faiss:IVF4,Flat|nprobe=4"'
    made = plan(str(TINY), override=searched, data_root=root, artifact_root=root)
    with made["hard_negatives"].building() as build:
        MAKERS["hard_negatives"](made, build, Engine(device="cpu", threads=1))
    link = root / "runs" / "tiny@ivf" / "hard_negatives"
    link.parent.mkdir()
    link.symlink_to(made["hard_negatives"].path)
    assert len(list(root.glob("index/*/MANIFEST.json"))) == 2
    assert "nothing to free" in gc().stdout
    link.unlink()
    assert "3 of" in gc().stdout
    unit = root / "hard_negatives" / ".abc.work" / "shards" / "index-i2t.unit"  # of a search that goes on
    unit.parent.mkdir(parents=True)
    unit.touch()
    assert "1 of" in gc().stdout


def test_gc_lists_what_killed_commands_left(gc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    left = tmp_path / ".table.work"
    with scratch_beside(tmp_path / "table") as scratch:
        (scratch / "half").write_text("made")
        assert f"{left} is in use" in gc("--delete", "--unfinished").stdout
        shutil.copytree(scratch, tmp_path / "copy")
    (tmp_path / "copy").rename(left)
    assert "nothing to free" in gc().stdout
    assert str(left) in gc("--unfinished").stdout
    deleted = gc("--delete", "--unfinished").stdout
    assert f"deleted {left}" in deleted
    assert " artefacts, 1 unfinished, " in deleted
    assert not left.exists()


def test_gc_deletes_the_rest_of_what_it_was_killed_over(gc, root):
    embeddings = only(root, "embeddings")
    (embeddings / "MANIFEST.json").unlink()
    (embeddings / "images.npy").unlink()
    assert f"deleted {embeddings}" in gc("--delete").stdout
    assert not embeddings.exists()


def test_explain_names_the_nearest_and_the_differences(aoq, mined):
    there = json.loads(aoq("explain", TINY, "hard_negatives", "--json").stdout)
    assert (there["state"], there["nearest"], there["differences"]) == ("done", None, {})
    assert Path(there["path"]) == only(mined, "hard_negatives")
    assert there["ingredients"]["h_captions"] == 20
    every = json.loads(aoq("explain", TINY, "--json", "--override", "mining.h_images=7").stdout)
    other = every["hard_negatives"]
    assert every["dataset"]["state"] == "done"
    assert (other["state"], other["nearest"]) == ("missing", there["key"])
    assert other["differences"] == {"ingredients.h_images": {"here": 7, "there": 8}}


def test_without_an_experiment_all_are_looked_at(aoq, tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    for name in ("tiny", "other"):
        text = TINY.read_text().replace("images = 60", "images = 60" if name == "tiny" else "images = 61")
        (tmp_path / "configs" / f"{name}.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("aoq.pipeline.cli.artifacts.names_in", lambda: ["demo", "other", "tiny"])
    assert set(json.loads(aoq("status", "--json").stdout)) == {"tiny"}
    assert aoq("verify").stdout.endswith("5 artefacts are whole.\n")
    (tmp_path / "configs" / "tiny.toml").rename(tmp_path / "configs" / "third.toml")
    left_out = aoq("verify", code=1).stderr
    assert "all artefacts there belong to runs of other files or with an override: tiny; name each as" in left_out
