"""Stages on files of a user's own: an imported teacher, a table of other data, features that are not numbers."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from models import MODELS, build_model
from pipeline import produce
from pipeline.cli import main
from pipeline.cli.artifacts import changed_data
from pipeline.config.models import SCAN
from pipeline.data.demo import write_demo_world
from pipeline.data.folder import open_split
from pipeline.data.noise import draw_noise
from pipeline.engine import Engine
from pipeline.evaluation.retrieval import evaluate_similarity
from pipeline.mining.screening.view import read_view
from pipeline.mining.table import read_positives, read_table
from pipeline.produce.inputs import open_named_pairs, open_pairs, open_train_split
from pipeline.stages import plan
from pipeline.training.checkpoint import read_weights, save_model

SMALL = {"embedding_size": 16, "word_size": 8, "bidirectional": False}
EXPERIMENT = """
dataset.folder = "{folder}"
model = {{name = "vsepp", embedding_size = 16, word_size = 8}}
{teacher}
second_round = {{epochs = 1, batch_size = 16, loss.name = "offtri"}}
"""
ENGINE = Engine(device="cpu", threads=1)


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_demo_world(root / "one", images=40, dev_images=12, seed=0)
    write_demo_world(root / "two", images=40, dev_images=12, seed=1)
    return root


@pytest.fixture
def make(data_root, tmp_path):
    """Plan an experiment from its parts and run its stages in turn."""

    def run(name, stages, folder="one", teacher="", root=data_root, text=EXPERIMENT):
        path = tmp_path / f"{name}.toml"
        path.write_text(text.format(folder=folder, teacher=teacher))
        chain = plan(str(path), data_root=root, artifact_root=tmp_path / "artifacts")
        for stage in stages:
            with chain[stage].building() as build:
                if build is not None:
                    getattr(produce, f"produce_{stage}")(chain, build, ENGINE)
        return chain

    return run


OWN = 'first_round = {epochs = 1, batch_size = 16, loss.name = "online"}\nmining = {h_captions = 9, h_images = 4}'
IMPORTED = 'teacher_weights = "teacher.safetensors"\nmining = {h_captions = 9, h_images = 4}'
MINING = ["dataset", "first_round", "embeddings", "hard_negatives"]


def test_every_stage_records_where_it_comes_from(make):
    chain = make("own", [*MINING, "second_round", "evaluation"], teacher=OWN)
    table = read_table(chain["hard_negatives"].path / "table")
    weights = chain["first_round"].manifest()["files"]["model.safetensors"]["sha256"]
    assert table.manifest["teacher"] == {"experiment": "own", "model": "vsepp", "weights_sha256": weights}
    assert table.manifest["dataset"] == chain["dataset"].manifest()["fingerprint"]["train"]
    metrics = chain["evaluation"].manifest()["metrics"]
    assert metrics == chain["second_round"].manifest()["metrics"]
    scores = np.load(chain["evaluation"].path / "similarity.npy", mmap_mode="r")
    assert scores.shape == (12, 60)


def test_a_full_disk_ends_an_evaluation_with_a_remedy_and_not_the_process(make, monkeypatch):
    chain = make("own", [*MINING, "second_round"], teacher=OWN)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="free some space"):
            make("own", ["evaluation"], teacher=OWN)
    assert not chain["evaluation"].exists()
    assert "rsum" in make("own", ["evaluation"], teacher=OWN)["evaluation"].manifest()["metrics"]


SCREENED = """
[screen]
same_text = true
near_text = 0.6
caption_similarity = 0.8
image_similarity = 0.9
positives = "known.csv"
max_uses = 40
suspected = "downweight"
[sampling]
strategy = "weighted"
gap = 0.1
sharpness = 20.0
windows = [[0.0, 0.5]]
"""


def test_a_student_draws_from_what_its_screen_leaves(make, data_root):
    (data_root / "known.csv").write_text("caption_id,image_id\n7,9\n")
    chain = make("own", [*MINING, "screen", "second_round"], teacher=OWN, text=EXPERIMENT + SCREENED)
    table = read_table(chain["hard_negatives"].path / "table")
    view = read_view(chain["screen"].path / "view", table.manifest)
    assert view.manifest["screen"]["positives"] == "known.csv"
    counts = chain["screen"].manifest()["directions"]
    assert counts == view.manifest["directions"]
    for direction in ("i2t", "t2i"):
        assert counts[direction]["listed"] == table[direction].negative_ids.size
        assert 0 < counts[direction]["meets"]["near_text"] < counts[direction]["listed"]


def test_a_part_of_the_training_split_is_a_split_of_its_own(make, caplog):
    caplog.set_level("INFO")
    whole = make("own", [], teacher=OWN)
    part = EXPERIMENT + "dataset.train_images = 9\nsampling = {{harder = 1.5, hardest = 6.0}}"
    chain = make("own", [*MINING, "second_round"], teacher=OWN, text=part)
    table, made = read_table(chain["hard_negatives"].path / "table"), chain["dataset"].manifest()
    assert (len(table.i2t), len(table.t2i)) == (9, 45)
    assert made["counts"]["train"] == {"images": 9, "captions": 45}
    assert table.manifest["dataset"] == made["fingerprint"]["train"]
    assert "first 2 captions of an image and 1 images of a caption" in caplog.text  # 45 / (16 * 1.5), 9 / (16 * 1.5)
    assert whole["dataset"].key != chain["dataset"].key


@pytest.mark.parametrize(("start", "stage"), [("teacher", "first_round"), ("control", "control")])
def test_fine_tuning_goes_on_from_trained_weights(make, start, stage):
    """A step of no length leaves the student where it started; and there is no warm-up."""
    still = f'second_round = {{{{epochs = 2, batch_size = 16, learning_rate = 1e-30, start = "{start}", LOSS}}}}'
    loss = 'warmup = ["sum"], loss.name = "offtri"'
    text = EXPERIMENT[: EXPERIMENT.index("second_round")] + still.replace("LOSS", loss)
    chain = make("own", [*MINING, "control", "second_round"], teacher=OWN, text=text)
    found = [read_weights(chain[made].path / "model.safetensors")[1] for made in (stage, "second_round")]
    assert all(torch.allclose(value, found[1][name], atol=1e-20) for name, value in found[0].items())
    assert chain[stage] in chain["second_round"].upstream
    lines = map(json.loads, (chain["second_round"].path / "metrics.jsonl").read_text().splitlines())
    assert {line["loss_name"] for line in lines if "loss_name" in line} == {"offtri"}


NOISY = EXPERIMENT + "[dataset.noise]\n"


def test_training_sees_wrong_pairs_and_dev_does_not(make, data_root):
    chain = make("noisy", MINING, teacher=OWN, text=NOISY + "ratio = 0.5\nseed = 2")
    clean, noisy = open_split(chain.folder, "train").image_of, open_train_split(chain).image_of
    np.testing.assert_array_equal(noisy, draw_noise(clean, chain.experiment.dataset.noise))
    np.testing.assert_array_equal(open_pairs(chain, "train").split.image_of, noisy)
    np.testing.assert_array_equal(open_pairs(chain, "dev").split.image_of, open_split(chain.folder, "dev").image_of)
    np.testing.assert_array_equal(open_named_pairs(chain, chain.folder, "train").split.image_of, clean)
    table = chain["hard_negatives"].path / "table"
    np.testing.assert_array_equal(read_positives(table, 40, 200), noisy)
    manifest = chain["dataset"].manifest()
    assert manifest["wrong_pairs"] == (noisy != clean).sum() > 80
    assert (
        manifest["fingerprint"]["train"]
        != make("own", ["dataset"], teacher=OWN)["dataset"].manifest()["fingerprint"]["train"]
    )
    shutil.copy(chain["dataset"].path / "noise.npy", data_root / "again.npy")
    again = make("again", ["dataset"], teacher=OWN, text=NOISY + 'file = "again.npy"')
    assert again["dataset"].manifest()["fingerprint"] == manifest["fingerprint"]


def test_a_wrong_noise_file_stops_at_the_dataset(make, data_root, tmp_path):
    np.save(data_root / "short.npy", np.arange(7))
    with pytest.raises(ValueError, match=r"short.npy: a noise file has .* this array has \(7,\)"):
        make("short", ["dataset"], teacher=OWN, text=NOISY + 'file = "short.npy"')
    assert not list((tmp_path / "artifacts").glob("dataset/*/MANIFEST.json"))


def test_tables_of_other_wrong_pairs_are_not_joined(make, tmp_path):
    make("one", [], teacher=OWN)
    make("other", [], teacher=OWN, text=NOISY + "ratio = 0.5")
    members = [str(tmp_path / f"{name}.toml") for name in ("one", "other")]
    with pytest.raises(ValueError, match="are of different training data"):
        make("both", [], text=f'[fusion]\nmembers = {members}\nmethod = "rank"')


def ensemble_of(*members, weights=None):
    return f"[ensemble]\nmembers = {[str(member) for member in members]}\n" + (
        f"weights = {weights}" if weights else ""
    )


def test_an_ensemble_averages_the_members_similarities(make, tmp_path):
    stages = [*MINING, "second_round", "evaluation"]
    one = make("one_seed", stages, teacher=OWN)
    two = make("two_seed", stages, teacher="seed = 1\n" + OWN)
    members = tmp_path / "one_seed.toml", f"{tmp_path / 'one_seed.toml'}@seed=1"
    both = make("both", ["evaluation"], text=ensemble_of(*members, weights=[1.0, 3.0]))
    assert [member["evaluation"].key for member in both.members] == [one["evaluation"].key, two["evaluation"].key]
    scores = [np.load(chain["evaluation"].path / "similarity.npy") for chain in (one, two, both)]
    np.testing.assert_allclose(scores[2], (scores[0] + 3 * scores[1]) / 4, atol=1e-6)
    image_of = open_split(both.folder, "dev").image_of
    manifest = both["evaluation"].manifest()
    assert manifest["metrics"] == evaluate_similarity(scores[2], image_of)
    assert manifest["member_metrics"] == [chain["evaluation"].manifest()["metrics"] for chain in (one, two)]
    assert make("equal", [], text=ensemble_of(*members))["evaluation"].key != both["evaluation"].key


def test_an_ensemble_that_cannot_be_is_refused(make, tmp_path):
    make("own", [], teacher=OWN)
    make("elsewhere", [], folder="two", teacher=OWN)
    make("worded", [], teacher=OWN + "\ndataset.min_count = 1")
    own = tmp_path / "own.toml"
    both = make("both", [], text=ensemble_of(own, f"{own}@seed=1"))
    with pytest.raises(ValueError, match=r"ensemble 'both' has stages .*'evaluation'\], not 'second_round'"):
        both["second_round"]
    for name, message in (
        ("elsewhere", "'own' and 'elsewhere' are of different data"),
        ("worded", "'own' and 'worded' are of different vocabularies"),
        ("both", "names .*both.toml', an ensemble itself"),
    ):
        with pytest.raises(ValueError, match=message):
            make("wrong", [], text=ensemble_of(own, tmp_path / f"{name}.toml"))
    with pytest.raises(ValueError, match=r"both.toml' is an ensemble, which mines no table"):
        make("student", [], teacher=f'teacher = "{tmp_path / "both.toml"}"')


FRAGMENTS = """
dataset.folder = "{folder}"
model = {{name = "NAME", embedding_size = 16, word_size = 8}}
{teacher}
second_round = {{epochs = 1, batch_size = 16, loss.name = "adapoffquin"}}
"""


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"vsepp", "vsrn", "scan"}))
def test_every_model_can_be_a_student(make, tmp_path, name):
    make("own", MINING, teacher=OWN)
    student = make(
        name,
        ["dataset", "second_round", "evaluation"],
        teacher=f'teacher = "{tmp_path / "own.toml"}"',
        text=FRAGMENTS.replace("NAME", name),
    )
    assert student["evaluation"].manifest()["metrics"] == student["second_round"].manifest()["metrics"]


ANNOTATED = FRAGMENTS.replace("NAME", "scan").replace('"adapoffquin"', '"online"')


def test_the_attention_of_a_student_is_measured_where_phrases_are_annotated(make, data_root, tmp_path):
    make("own", [], teacher=OWN)
    own = f'teacher = "{tmp_path / "own.toml"}"'
    stages = ["dataset", "second_round", "evaluation"]
    found = make("demo", stages, teacher=own, text=ANNOTATED)["evaluation"].manifest()["attention"]
    assert set(found) == {"precision", "recall", "f1", "threshold", "phrases", "left_out", "curve"}
    assert found["f1"] == max(found["curve"]["f1"])
    assert found["curve"]["recall"][0] == 100  # every weight is more than 0
    assert 0 < found["curve"]["precision"][0] < 100
    roots = ["--data-root", str(data_root), "--artifact-root", str(tmp_path / "artifacts")]
    shown = CliRunner().invoke(main, ["results", str(tmp_path / "demo.toml"), *roots]).stdout
    assert f"attention of round two: precision {found['precision']:.1f}  recall" in shown
    assert f"({found['phrases']} phrases of dev, weights over {found['threshold']:.2f})" in shown

    folder = data_root / "annotated"
    shutil.copytree(data_root / "one", folder)
    for path in folder.glob("*_labels.json"):
        path.unlink()
    before = make("plain", stages, "annotated", own, text=ANNOTATED)
    assert "attention" not in before["evaluation"].manifest()
    unattending = make("own", [], "annotated", teacher=OWN)["evaluation"].key
    split = open_split(folder, "dev")
    first = [{"phrase": split.captions[0].split()[0], "start": 0, "boxes": [split.boxes[0, 3].tolist()]}]
    (folder / "dev_phrases.jsonl").write_text(json.dumps(first) + "\n" + "[]\n" * 59)
    after = make("plain", stages, "annotated", own, text=ANNOTATED)
    assert after["evaluation"].manifest()["attention"]["phrases"] == 1
    assert after["second_round"].key == before["second_round"].key
    (folder / "dev_phrases.jsonl").write_text("[]\n" * 59)
    with pytest.raises(ValueError, match="59 lines for 60 captions"):
        make("plain", ["evaluation"], "annotated", own, text=ANNOTATED)
    assert make("own", [], "annotated", teacher=OWN)["evaluation"].key == unattending


def test_what_a_model_needs_of_the_data_is_checked_first(make, data_root, tmp_path):
    make("own", [], teacher=OWN)
    plain = data_root / "plain"
    shutil.copytree(data_root / "one", plain, dirs_exist_ok=True)
    for path in plain.glob("*_boxes.npy"):
        path.unlink()
    regions = np.load(plain / "dev_ims.npy").shape[1]
    mask = np.ones((12, regions), dtype=bool)
    mask[3, -1] = False
    np.save(plain / "dev_mask.npy", mask)
    for name, message in (
        ("pfan", r"PFAN needs to know where regions lie, and split 'train' has no train_boxes.npy; write"),
        ("sgr", r"SGR normalises each region slot .* dev_mask.npy masks some; set \[dataset\] max_regions"),
    ):
        student = FRAGMENTS.replace("NAME", name).replace('"adapoffquin"', '"online"')
        with pytest.raises(ValueError, match=message):
            make(
                name, ["dataset", "second_round"], "plain", teacher=f'teacher = "{tmp_path / "own.toml"}"', text=student
            )


def test_an_imported_teacher_mines(make, data_root):
    chain = make("own", ["dataset"], teacher=OWN)
    sizes = {key: chain["dataset"].manifest()[key] for key in ("feature_size", "vocabulary_size")}
    options = {**SMALL, **sizes}
    model = build_model("vsepp", **options)
    save_model(data_root / "teacher.safetensors", model.state_dict(), {"name": "vsepp", "options": options})
    mined = make("imported", MINING, teacher=IMPORTED)
    assert "rsum" in mined["first_round"].manifest()["metrics"]
    _, weights = read_weights(mined["first_round"].path / "model.safetensors")
    assert weights.keys() == model.state_dict().keys()
    other = {**options, "vocabulary_size": options["vocabulary_size"] + 1}
    save_model(
        data_root / "teacher.safetensors",
        build_model("vsepp", **other).state_dict(),
        {"name": "vsepp", "options": other},
    )
    with pytest.raises(ValueError, match=r"vocabulary_size is \d+ there and \d+ here.* Set \[model\]"):
        make("wrong", MINING, teacher=IMPORTED)


def test_imported_weights_of_any_model_are_evaluated(make, data_root):
    sizes = make("own", ["dataset"], teacher=OWN)["dataset"].manifest()
    options = SCAN(name="scan", embedding_size=16, word_size=8).model_dump(exclude={"name"})
    options |= {key: sizes[key] for key in ("feature_size", "vocabulary_size")}
    weights = build_model("scan", **options).state_dict()
    save_model(data_root / "scan.safetensors", weights, {"name": "scan", "options": options})
    source = 'weights = "scan.safetensors"'
    imported = FRAGMENTS.replace("NAME", "scan").replace("second_round", "# second_round")
    chain = make("weights", ["dataset", "second_round", "evaluation"], teacher=source, text=imported)
    assert set(chain.stages) == {"dataset", "second_round", "evaluation"}
    assert chain["evaluation"].manifest()["metrics"] == chain["second_round"].manifest()["metrics"]
    for text, message in (
        (FRAGMENTS.replace("NAME", "scan"), r"`weights` stand in place of all training; take out \['second_round'\]"),
        (imported.replace('"scan"', '"bfan"'), "holds a 'scan', the experiment a 'bfan'"),
        (
            imported.replace("{teacher}", ""),
            r"give \[second_round\] or \[co_teaching\], or imported `weights`",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make("wrong", ["dataset", "second_round"], teacher=source, text=text)


def test_a_table_mined_on_other_data_is_refused(make, tmp_path):
    make("own", MINING, teacher=OWN)
    student = f'teacher = "{tmp_path / "own.toml"}"'
    with pytest.raises(ValueError, match="mined on other training data"):
        make("student", ["dataset", "second_round"], folder="two", teacher=student)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda folder: spoil_feature(folder, np.nan), r"train_ims\.npy.*aoq data check|aoq data check"),
        (lambda folder: spoil_feature(folder, np.inf), r"aoq data check"),
        (lambda folder: (folder / "train_caps.txt").write_bytes(b"\xff\xfe\n" * 200), "aoq data check"),
        (lambda folder: cut_caption(folder), "aoq data check|captions"),
    ],
    ids=["nan", "inf", "bytes", "counts"],
)
def test_broken_folders_stop_at_the_dataset(make, data_root, tmp_path, spoil, message):
    root = tmp_path / "spoilt"
    shutil.copytree(data_root / "one", root / "one")
    spoil(root / "one")
    with pytest.raises(ValueError, match=message):
        make("broken", ["dataset"], teacher=OWN, root=root)
    assert not list((tmp_path / "artifacts").glob("dataset/*/MANIFEST.json"))


def test_a_broken_split_that_is_not_used_does_not_matter(make, data_root, tmp_path):
    root = tmp_path / "spare"
    shutil.copytree(data_root / "one", root / "one")
    (root / "one" / "test_caps.txt").write_text("no images\n")
    make("spare", ["dataset"], teacher=OWN, root=root)


def test_a_change_that_keys_do_not_see_is_found_by_hashing(make, data_root, tmp_path):
    root = tmp_path / "changed"
    shutil.copytree(data_root / "one", root / "one")
    chain = make("changed", ["dataset"], teacher=OWN, root=root)
    assert changed_data(chain) == []
    features = np.load(root / "one" / "train_ims.npy")
    features[5, 1, 2] += 1
    np.save(root / "one" / "train_ims.npy", features)
    (sentence,) = changed_data(chain)
    assert "train_ims.npy is not the file that was read" in sentence


def spoil_feature(folder: Path, value: float) -> None:
    features = np.load(folder / "train_ims.npy")
    features[5, 1, 2] = value
    np.save(folder / "train_ims.npy", features)


def cut_caption(folder: Path) -> None:
    path = folder / "train_caps.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
