"""The loop: killed anywhere and resumed, it ends at the same weights; schedules; collapse; damaged files."""

import logging
import math
import os
import shutil
from contextlib import suppress
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from aoq.models import naaf
from aoq.pipeline.build import UNITS
from aoq.pipeline.config.losses import AdaptiveLoss, OnlineLoss
from aoq.pipeline.data.batches import epoch_order
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.evaluation.retrieval import evaluate_similarity
from aoq.pipeline.training import loop, metrics
from aoq.pipeline.training.checkpoint import load_model, save_model
from tests.training.conftest import CPU, TRAINING, KilledError, changed, check_the_same, kill_and_resume, lines, of_loss
from tests.training.steps import BOTH


@pytest.fixture
def whole(run_training, tmp_path):
    """The plain training, never killed."""
    return run_training(tmp_path / "whole")[0]


VARIANTS = {
    "vsepp": ("vsepp", TRAINING),
    "vsrn": ("vsrn", TRAINING),
    "naaf": ("naaf", TRAINING),
    "triples": ("vsepp", of_loss("adapoffquin", companions="anchors")),
    "constraints": ("scan", changed(constraints=BOTH, precision="bfloat16", start_up="auto")),
    "cosine": ("vsepp", changed(schedule="cosine", decay_epochs=(), warmup_steps=3, weight_decay=0.1, ema=0.8)),
    "paced": ("vsepp", changed(start_up="auto", warmup=(), epochs=5)),
    "infonce": ("vsepp", of_loss("infonce")),
    "steps": ("vsepp", changed(epoch_steps=3, epochs=5, keep="last")),
}
OPTIONAL = [name for name, (model, training) in VARIANTS.items() if model == "vsepp" and training != TRAINING]


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_and_resumed_ends_at_the_same_weights(run_training, tmp_path, variant):
    name, training = VARIANTS[variant]
    whole, _ = run_training(tmp_path / "whole", name, training=training)
    for kill_at in (1, 4, 12) if variant == "vsepp" else (11,):
        kill_and_resume(run_training, tmp_path, kill_at, whole, name=name, training=training)
    weights = load_model(tmp_path / "whole" / "model.safetensors").parameters()  # and nothing that is not the model's
    assert {one.dtype for one in weights} == {torch.float32}


def test_reading_ahead_changes_nothing_and_options_change_the_weights(run_training, tmp_path, whole):
    kill_and_resume(run_training, tmp_path, 8, whole, workers=3)
    hashes = [run_training(tmp_path / name, training=VARIANTS[name][1])[0]["final_weights_sha256"] for name in OPTIONAL]
    assert len({whole["final_weights_sha256"], *hashes}) == 1 + len(OPTIONAL)


def test_a_plateau_is_still_one_after_a_kill(run_training, tmp_path, monkeypatch, caplog):
    """Everything counts as a plateau here after nine steps."""
    for name, value in (("NEAR", 1e9), ("GAP", 1e9), ("PATIENCE", 9)):
        monkeypatch.setattr(metrics, name, value)
    run_training(tmp_path / "whole")
    assert caplog.text.count("the plateau of a collapsed model") == 1
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", kill_at=7)
    run_training(tmp_path / "cut")
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    flags = [line["collapsed"] for line in lines(tmp_path / "cut") if "collapsed" in line]
    assert flags.count(False) == 5  # after 2, 4, 5, 6 and 8 steps
    assert caplog.text.count("the plateau of a collapsed model") == 2
    caplog.clear()
    run_training(tmp_path / "logits", training=of_loss("infonce", warmup=()))  # which no start-up helps
    assert "the infonce loss has stayed at" in caplog.text
    assert "Try a lower learning rate." in caplog.text


@pytest.mark.parametrize("constraints", [BOTH, BOTH.model_copy(update={"ccs": None})])
def test_constraints_are_added_to_every_loss_and_logged(run_training, tmp_path, constraints):
    run_training(tmp_path, "scan", training=changed(constraints=constraints))
    weights = {name: one.weight for name, one in constraints if one is not None}
    for line in (line for line in lines(tmp_path) if "loss" in line):
        weighed = sum(weight * line[name] for name, weight in weights.items())
        assert weighed > 0
        assert line["auxiliary_loss"] == pytest.approx(weighed, abs=1e-4)
        assert line["loss"] == pytest.approx(line["retrieval_loss"] + weighed, abs=1e-4)
        assert {"ccr", "ccs"} & line.keys() == weights.keys()


def test_models_hear_of_every_epoch_and_step_once(run_training, monkeypatch, tmp_path):
    heard = []
    monkeypatch.setattr(naaf.NAAF, "begin_epoch", lambda self, epoch, epochs: heard.append((epoch, epochs)))
    monkeypatch.setattr(naaf.NAAF, "observe", lambda self, images, captions, matrix: heard.append(matrix.shape))
    with pytest.raises(KilledError):
        run_training(tmp_path, "naaf", kill_at=10)
    run_training(tmp_path, "naaf")
    epochs = [call for call in heard if isinstance(call, tuple) and not isinstance(call, torch.Size)]
    assert epochs == [(epoch, 3) for epoch in range(3)]
    assert len(heard) - len(epochs) == 3 * 5 + 2  # the steps after the last checkpoint, twice


def test_metrics_say_what_is_promised(run_training, pairs, tmp_path):
    result, _ = run_training(tmp_path)
    steps = [line for line in lines(tmp_path) if "loss" in line]
    offline = [line for line in steps if line["loss_name"] == "adapoffquin"]
    assert {line["loss_name"] for line in steps} == {"sum", "adapoffquin"}
    promised = {"online", "offline", "derived", "weight_mean", "weight_negative_share", "offline_above_positive_share"}
    assert promised | {"collision_rate", "learning_rate", "gradient_norm", "collapsed"} <= offline[0].keys()
    dev = [line for line in lines(tmp_path) if "dev_rsum" in line]
    assert [round(line["dev_rsum"], 3) for line in dev] == result["dev_rsum_by_epoch"]
    assert result["metrics"]["rsum"] == pytest.approx(max(line["dev_rsum"] for line in dev))
    assert offline[-1]["learning_rate"] == pytest.approx(1e-3)
    kept = load_model(tmp_path / "model.safetensors")
    scores = similarity_matrix(kept, pairs, CPU)
    assert evaluate_similarity(scores, pairs.split.image_of) == result["metrics"]


@pytest.mark.parametrize(("epoch_steps", "warmup"), [(3, 0), (7, 0), (3, 2), (7, 1)])
def test_epochs_of_some_steps_go_on_through_the_captions(
    run_training, sampler, pairs, tmp_path, monkeypatch, epoch_steps, warmup
):
    """Pass after pass; after the warm-up another one begins, from which the sampler counts epochs."""
    heard, draw = [], sampler.draw_for
    monkeypatch.setattr(sampler, "draw_for", lambda *given: heard.append(given) or draw(*given))
    schedule = changed(epoch_steps=epoch_steps, epochs=4, warmup=("sum",) * warmup, keep="last")
    notes, _ = run_training(tmp_path, training=schedule)
    assert (notes["steps"], len(notes["dev_rsum_by_epoch"]), notes["best_epoch"]) == (4 * epoch_steps, 4, 3)
    assert round(notes["metrics"]["rsum"], 3) == notes["dev_rsum_by_epoch"][3]
    count, size = pairs.split.caption_count, schedule.batch_size
    orders = [epoch_order(count, seed=5, epoch=number) for number in range(7)]
    passes = [[order[start : start + size] for start in range(0, count, size)] for order in orders]
    warm_steps = warmup * epoch_steps
    warm_passes = math.ceil(warm_steps / len(passes[0]))
    before, after = (list(chain.from_iterable(some)) for some in (passes[:warm_passes], passes[warm_passes:]))
    expected = [*before[:warm_steps], *after]
    assert all(map(np.array_equal, [rows for _, rows, *_ in heard], expected))
    counted = [epoch for draws, _, _, epoch in heard if draws == "quintuplet"]
    assert counted == [epoch for epoch in range(4 - warmup) for _ in range(epoch_steps)]


def test_a_paced_training_says_its_hardness(run_training, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    loss = AdaptiveLoss(name="adapoffquin", companions="anchors")
    paced = changed(start_up="auto", warmup=(), decay_epochs=(), epochs=8, loss=loss)
    notes, _ = run_training(tmp_path, training=paced)
    assert notes["metrics"]["rsum"] > notes["dev_rsum_by_epoch"][0] + 20  # it learns
    by_step = [line["hardness"] for line in lines(tmp_path) if "loss" in line]
    assert 0 <= by_step[0] < max(by_step) <= 1
    assert len(notes["hardness_by_epoch"]) == 8
    assert f"epoch 8: online negatives are of hardness {notes['hardness_by_epoch'][-1]}" in caplog.text


def test_it_notes_how_many_offline_negatives_were_harder_than_the_batchs(run_training, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "LOG_STEPS", 4)  # windows of several lengths
    notes, _ = run_training(tmp_path)
    monkeypatch.setattr(loop, "LOG_STEPS", 1)
    run_training(tmp_path / "by_step")
    steps = [line for line in lines(tmp_path / "by_step") if line["epoch"] == 2 and "loss" in line]
    last = np.mean([line["offline_harder_share"] for line in steps])
    assert notes["offline_harder_by_epoch"][-1] == pytest.approx(last, abs=1e-3)
    assert len(notes["offline_harder_by_epoch"]) == 2
    assert "hardness_by_epoch" not in notes


@pytest.mark.parametrize(
    ("name", "training", "message"),
    [
        ("vsepp", changed(warmup=()), "'adapoffquin' draws from a negative table, but there is none"),
        ("vsepp", of_loss("infonce", companions="anchors"), "'infonce' draws from a negative table, but there is none"),
        ("vsepp", changed(warmup_steps=15), "warmup_steps = 15 leaves none of 15 steps; lower it"),
        ("vsepp", changed(constraints=BOTH), "VSEpp compares whole images and captions and has no attention"),
    ],
)
def test_a_training_without_what_it_needs_is_refused(run_training, tmp_path, name, training, message):
    with pytest.raises(ValueError, match=message):
        run_training(tmp_path, name, sampler=None, training=training)


def test_a_loss_that_is_not_finite_is_an_error(run_training, pairs, tmp_path):
    pairs.split.features[3] = np.nan
    with pytest.raises(ValueError, match=r"a loss of epoch 0, step \d+ is not finite; check the features"):
        run_training(tmp_path, training=changed(loss=OnlineLoss(name="online"), warmup=()))


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("damaged", ["last.ckpt", "*.ckpt", "best-*/model.safetensors", "../metrics.jsonl"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before_or_to_a_new_start(
    run_training, tmp_path, whole, caplog, damaged
):
    cut = tmp_path / "cut"
    with pytest.raises(KilledError):
        run_training(cut, kill_at=12)  # in the third epoch: a checkpoint at the second's end, and one within
    assert (cut / UNITS / "previous.ckpt").exists()
    for path in (cut / UNITS).glob(damaged):
        flip(path, 40)
    resumed, steps = run_training(cut)
    if damaged == "last.ckpt":
        assert "last.ckpt is damaged or not a checkpoint (its checksum differs)." in caplog.text
        assert steps[0] > 5
    else:
        assert f"no checkpoint in {cut / UNITS} is intact: the training starts over" in caplog.text
        assert steps[0] <= 2
    check_the_same(cut, tmp_path / "whole", resumed, whole)


def test_best_weights_that_are_damaged_meanwhile_are_not_published(run_training, tmp_path, monkeypatch):
    def damage_and_save(path, *given):
        if path.name == "final.safetensors":
            flip(*[(found, 40) for found in path.parent.glob("best-*/model.safetensors")][-1])
        save_model(path, *given)

    monkeypatch.setattr(loop, "save_model", damage_and_save)
    with pytest.raises(ValueError, match=r"model.safetensors was damaged after it was written; run again"):
        run_training(tmp_path / "cut")
    monkeypatch.undo()
    assert not (tmp_path / "cut" / "model.safetensors").exists()


def test_a_training_killed_between_any_two_changes_of_its_files_ends_the_same(run_training, tmp_path, monkeypatch):
    """Every rename and removal is one to be killed before."""
    short = changed(epochs=2)
    whole, _ = run_training(tmp_path / "whole", training=short)
    cut, killed, changes = tmp_path / "cut", 0, []

    def counted(change):
        def one_more(*given, **how):
            changes.append(change)
            if len(changes) > killed:
                raise KilledError
            return change(*given, **how)

        return one_more

    while True:
        killed, changes = killed + 1, []
        with monkeypatch.context() as patch:
            for module, name in ((os, "replace"), (shutil, "rmtree"), (Path, "unlink"), (os, "truncate")):
                patch.setattr(module, name, counted(getattr(module, name)))
            with suppress(KilledError):
                resumed, _ = run_training(cut, training=short)
                break
    assert killed > 5
    check_the_same(cut, tmp_path / "whole", resumed, whole)


@pytest.mark.parametrize("loss", ["adapinfonce", "sigmoid"])
def test_a_loss_learns_its_numbers_after_the_warm_up(run_training, tmp_path, loss):
    training = of_loss(loss)
    notes, _ = run_training(tmp_path, training=training)
    first, *_, last = notes["learnt_by_epoch"]
    begins = {name: getattr(training.loss, name) for name in first}
    assert first == pytest.approx(begins)  # the warm-up learns none of it
    assert all(last[name] != pytest.approx(begins[name], rel=1e-3) for name in begins)
    assert ("bias" in last) == (loss == "sigmoid")


def test_without_a_table_the_batch_is_all_there_is(run_training, tmp_path, caplog):
    """`start_up` is ignored, and says so; the plateau is that of the batch's own columns."""
    caplog.set_level(logging.INFO)
    alone = of_loss("infonce", warmup=())
    plain, _ = run_training(tmp_path / "plain", training=alone, sampler=None)
    paced, _ = run_training(tmp_path / "paced", training=alone.model_copy(update={"start_up": "auto"}), sampler=None)
    assert paced["final_weights_sha256"] == plain["final_weights_sha256"]
    assert "hardness_by_epoch" not in paced
    assert caplog.text.count("start_up is ignored with loss 'infonce'") == 1
    assert "offline_harder_by_epoch" not in plain
    by_step = [line["plateau"] for line in lines(tmp_path / "plain") if "plateau" in line]
    assert all(2 * 8 * math.log(6) < plateau <= 2 * 10 * math.log(10) for plateau in by_step)  # few share an image
