"""Stages follow an experiment's sections, and write down what they used."""

import errno
import json
import os

import numpy as np
import pytest
import torch

from aoq.models import MODELS
from aoq.pipeline import build
from aoq.pipeline.batches.lists import meeting_lists
from aoq.pipeline.batches.order import mined_order
from aoq.pipeline.data.batches import epoch_order, steps_per_epoch
from aoq.pipeline.data.demo import is_true, read_scenes
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.embedding import EmbeddingStore
from aoq.pipeline.evaluation.hubness import corrected
from aoq.pipeline.evaluation.retrieval import evaluate_similarity
from aoq.pipeline.report.verdict import gain_on_control
from aoq.pipeline.tables.screens.view import read_view
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.training import trainer
from aoq.pipeline.training.checkpoint import read_weights
from tests.cli.conftest import run as aoq
from tests.stages.conftest import lines_with, make_stage


def test_results_show_another_split_beside_dev(make, file_of, places, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = []
    for split in ("dev", "train"):
        more = f'evaluation = {{split = "{split}", hubness = 0.1}}'
        chain = make(split, "mining", "second_round", "evaluation", more=more)
        printed = aoq("results", file_of(split), *places).stdout
        rows = [line for line in printed.splitlines() if line.startswith("round two")]
        shown += [line.split() for line in rows if " - control: " not in line]
    dev, again, train = shown
    assert dev == again
    assert train[:3] == ["round", "two,", "train"]
    corrected_again = corrected(np.load(chain["evaluation"].path / "similarity.npy"), 0.1)
    without = evaluate_similarity(corrected_again, open_split(chain.folder, "train").image_of)
    assert chain["evaluation"].manifest()["without_hubs"] == pytest.approx(without)
    assert f"rsum {without['rsum']:,.2f}".rstrip("0") in printed
    metrics = chain["evaluation"].manifest()["metrics"]
    assert {f"{metrics[name]:.1f}" for name in ("i2t_r1", "rsum")} <= {*train}
    make("control", "second_round", "evaluation", loss="online", more=more)
    printed = aoq("results", file_of("train"), *places).stdout
    verdicts = [line for line in printed.splitlines() if line.startswith("round two - control: ")]
    assert ["12 dev images" in verdicts[0], "40 train images" in verdicts[1], "control, train" in printed] == [True] * 3


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_ends_an_evaluation_with_a_remedy_and_not_the_process(make, monkeypatch):
    chain = make("own", "mining", "second_round")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="free some space"):
            make_stage(chain, "evaluation")
    assert not chain["evaluation"].exists()
    make_stage(chain, "evaluation")
    assert "rsum" in chain["evaluation"].manifest()["metrics"]


JUDGED = 'screen = {{judgements = "judged.jsonl", alike_owners = 0.2, match_prior = 0.05, suspected = "{suspected}"}}'
SHORT = 'epochs = 2, batch_size = 16, loss.name = "LOSS"'
FEW = "dataset.train_images = 9"
WEIGHTED = 'sampling = {strategy = "weighted", gap = 0.1, sharpness = 20.0, windows = [[0.0, 0.5]]}'
NCE = 'epochs = 2, batch_size = 16, loss = {name = "infonce", hardness_weight = 2.0}'
SOFT = 'epochs = 1, batch_size = 40, loss = {name = "LOSS", margin_offline = 0.2}'


HOW = ("drop", "downweight", "soft_margin", "positive")
JUDGING = [*((suspected, SOFT) for suspected in HOW), *((suspected, NCE) for suspected in HOW[2:])]


@pytest.mark.parametrize(("suspected", "rounds"), JUDGING)
def test_a_student_trains_on_what_a_judge_says(make, data_root, suspected, rounds):
    """The judge knows the world's truth about the first five captions listed for each image."""
    chain = make("own", "mining")
    table = read_table(chain["hard_negatives"].path / "table")
    scenes = read_scenes(chain.folder, "train")
    true = [is_true(caption, scenes) for caption in open_split(chain.folder, "train").captions]
    pairs = [(image, int(caption)) for image in range(40) for caption in table.i2t.negative_ids[image, :5]]
    judged = [
        {"image_id": image, "caption_id": caption, "probability": 0.9 if true[caption][image] else 0.1}
        for image, caption in pairs
    ]
    (data_root / "judged.jsonl").write_text("\n".join(map(json.dumps, judged)))
    chain = make("own", "screen", "second_round", second_round=rounds, more=JUDGED.format(suspected=suspected))
    view = read_view(chain["screen"].path / "view", table.manifest)
    assert view.manifest["directions"]["i2t"]["judged"] == len(pairs)
    assert chain["screen"].manifest()["directions"] == view.manifest["directions"]
    for image, caption in pairs:
        (place,) = np.flatnonzero(table.i2t.negative_ids[image] == caption)
        assert view.i2t.suspicion[image, place] == np.float32(0.9 if true[caption][image] else 0.1)
        assert (view.i2t.flags[image, place] > 0) == true[caption][image]
    notes = chain["second_round"].manifest()
    assert chain["second_round"].ingredients["suspected"] == suspected
    soft = notes.get("offline_match_probability_by_epoch")
    assert (soft is not None) == (suspected == "soft_margin")
    if soft is not None:
        assert 0.01 < soft[0] < 0.5


def test_a_part_of_the_training_split_is_a_split_of_its_own(make, caplog):
    caplog.set_level("INFO")
    whole = make("own")
    part = "dataset.train_images = 9\nsampling = {hardness = 1.5, hardest = 6.0}"
    chain = make("own", "mining", "second_round", more=part)
    table, made = read_table(chain["hard_negatives"].path / "table"), chain["dataset"].manifest()
    assert (len(table.i2t), len(table.t2i)) == (9, 45)
    assert made["counts"]["train"] == {"images": 9, "captions": 45}
    assert table.manifest["dataset"] == made["fingerprint"]["train"]
    assert "has rank 3 of 45 captions; draws from the first 2" in caplog.text  # 45 / (16 * 1.5)
    assert "has rank 1 of 9 images; draws from the first 1" in caplog.text  # at least 1
    assert whole["dataset"].key != chain["dataset"].key


@pytest.mark.parametrize(("start", "stage", "epochs"), [("teacher", "first_round", 1), ("control", "control", 2)])
def test_fine_tuning_goes_on_from_trained_weights(make, start, stage, epochs):
    """A step of no length leaves the student where it started; and there is no warm-up."""
    still = f'epochs = 2, batch_size = 16, learning_rate = 1e-30, start = "{start}", '
    still += 'warmup = ["sum"], loss.name = "offtri"'
    chain = make("own", "mining", "control", "second_round", second_round=still, more=WEIGHTED)
    found = [read_weights(chain[made].path / "model.safetensors")[1] for made in (stage, "second_round")]
    assert all(torch.allclose(value, found[1][name], atol=1e-20) for name, value in found[0].items())
    assert chain[stage] in chain["second_round"].upstream
    lead = {"teacher": f"after {epochs} epochs elsewhere, the control from scratch", "control": "from the control's"}
    assert f"Round two started {lead[start]}" in gain_on_control(chain)
    assert {*lines_with("loss_name", chain)} == {"offtri"}


def test_a_batch_larger_than_the_data_is_refused_before_the_teacher_trains(make):
    chain = make("own", "dataset", second_round='epochs = 1, batch_size = 5000, loss.name = "online"')
    refused = r"^\w+: \[second_round\] batch_size is 5000, but the training split has 200 captions; lower it\.$"
    with pytest.raises(ValueError, match=refused):
        make_stage(chain, "first_round")


@pytest.mark.parametrize("companions", ["", ', companions = "anchors"'])
def test_a_guide_is_the_teacher_whose_vectors_are_there(make, monkeypatch, companions):
    """Batch by batch, against its scores and cosines in a loop; a margin of -2 marks no pair, and one of 2 all.

    It leaves the pairs of one triple alone: their negatives are the table's.
    """
    rounds = f'epochs = 1, batch_size = 18, loss = {{name = "infonce"{companions}}}'
    store = EmbeddingStore.open((own := make("own", "mining"))["embeddings"].path)
    images = store.images[open_split(own.folder, "train").image_of]
    near = float(np.quantile(np.maximum(images @ images.T, store.captions @ store.captions.T), 0.6))
    groups, read = [], trainer.read_batch
    monkeypatch.setattr(trainer, "read_batch", lambda *given: groups.append(given[1].groups[0]) or read(*given))
    for least, margin in ((None, 0.0), (near, None), (near, -2.0), (near, 2.0)):
        groups.clear()
        given = {"guide_similarity": least, "guide_margin": margin}
        more = "\n".join(f"sampling.{name} = {value}" for name, value in given.items() if value is not None)
        chain = make("own", "mining", second_round=rounds, more=more)
        make_stage(chain, "second_round")
        shares = []
        for pairs in groups:
            images, captions = store.images[pairs[:, 0]], store.captions[pairs[:, 1]]
            scores, size = images @ captions.T, len(pairs)
            marked = [
                (least is not None and max(images[i] @ images[j], captions[i] @ captions[j]) >= least - 1e-7)
                or (margin is not None and scores[i, j] > min(scores[i, i], scores[j, j]) - margin)
                for i in range(size)
                for j in range(size)
                if (i - j) % (size // 3 if companions else size)
            ]
            shares.append(sum(marked) / (size * (size - 1)))
        assert lines_with("guided_share", chain) == [pytest.approx(np.mean(shares), abs=1e-3)]
        assert 0 < np.mean(shares) < 1 or margin == 2.0


@pytest.mark.parametrize(("loss", "groups"), [("online", 1), ("adapoffquin", 3), ("infonce", 2)])
def test_any_loss_trains_on_mined_batches_and_its_control_on_random_ones(make, monkeypatch, loss, groups):
    """Batch by batch the captions are those of the table's mined batches, in each epoch."""
    rounds = f'epochs = 2, batch_size = 10, loss.name = "{loss}"'
    chain = make("own", "mining", second_round=rounds, more='sampling = {batches = "mined", community = 5}')
    seen, read = [], trainer.read_batch
    monkeypatch.setattr(trainer, "read_batch", lambda *given: seen.append(given[1].groups) or read(*given))
    for stage in ("control", "second_round"):
        make_stage(chain, stage)
    table = read_table(chain["hard_negatives"].path / "table")
    captions = len(table.t2i)
    lists, seed = meeting_lists(table, table.positives), chain.experiment.seed
    orders = [epoch_order(captions, seed=seed, epoch=epoch) for epoch in (0, 1)]
    expected = [*orders, *(mined_order(lists, 10, epoch, seed=seed, community=5) for epoch in (0, 1))]
    steps = steps_per_epoch(captions, 10)
    assert [len(one) for one in seen] == [1] * 2 * steps + [groups] * 2 * steps
    for epoch, order in enumerate(expected):
        found = np.concatenate([one[0, :, 1] for one in seen[epoch * steps : (epoch + 1) * steps]])
        assert found.tolist() == order[: len(found)].tolist()
    assert chain["second_round"].key != chain["control"].key
    assert chain["hard_negatives"] in chain["second_round"].upstream


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"vsepp", "vsrn", "scan"}))
def test_every_model_can_be_a_student(make, taught_by, name):
    make("own", "mining", more=FEW)
    stages = ["dataset", "second_round", "evaluation"]
    short = 'epochs = 1, batch_size = 16, loss.name = "adapoffquin"'
    student = make(name, *stages, model=name, teacher=taught_by("own"), second_round=short, more=FEW)
    assert student["evaluation"].manifest()["metrics"] == student["second_round"].manifest()["metrics"]


@pytest.mark.parametrize("second_round", [SHORT, SHORT.replace("LOSS", "online")])
def test_a_training_that_ended_takes_no_step_again_until_it_is_published(make, monkeypatch, second_round):
    """The disk is full when the manifest is to be written."""
    chain = make("own", "mining", second_round=second_round)

    with monkeypatch.context() as patch:
        patch.setattr(build.Build, "write_manifest", full)
        with pytest.raises(OSError, match=r"free some space .* finished work is kept"):
            make("own", "second_round", second_round=second_round)
    ended = {path.name: path.read_bytes() for path in chain["second_round"].work.glob("*.safetensors")}
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "train_epoch", None)
        made = make("own", "second_round", second_round=second_round)["second_round"]
    assert ended == {path.name: path.read_bytes() for path in made.path.glob("*.safetensors")}
    assert {path.name for path in made.path.iterdir()} == {*made.manifest()["files"], "MANIFEST.json"}
    assert len(made.manifest()["dev_rsum_by_epoch"]) == 2
