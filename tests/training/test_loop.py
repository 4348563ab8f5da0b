"""The loop: killed anywhere and resumed, it ends at the same weights; schedules; collapse; damaged files."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from aoq.models import MODELS, build_model, naaf
from aoq.models.vsepp import VSEpp
from aoq.pipeline.build import UNITS
from aoq.pipeline.config.losses import AdaptiveLoss, LossSection, OnlineLoss
from aoq.pipeline.config.training import Constraints, Training
from aoq.pipeline.embedding import similarity_matrix
from aoq.pipeline.evaluation.retrieval import evaluate_similarity, retrieval_ranks
from aoq.pipeline.training import collapse, resumable
from aoq.pipeline.training.batch_maker import epoch_loss
from aoq.pipeline.training.checkpoint import load_model, save_model
from aoq.pipeline.training.loop import Trainer, learnt_numbers
from aoq.pipeline.training.optimizer import learning_rate, make_optimizer
from aoq.pipeline.training.run import Run

TRAINING = Training(
    loss=AdaptiveLoss(name="adapoffquin"),
    epochs=4,
    batch_size=10,
    learning_rate=1e-2,
    decay_epochs=(3,),
    warmup=("sum", "online"),
)
BOTH = Constraints.model_validate({"ccr": {"weight": 0.1, "margin": 0.2}, "ccs": {"weight": 1.0, "margin": 0.1}})
OPTIONS = {
    "vsepp": {"embedding_size": 8, "word_size": 5},
    "vsrn": {"embedding_size": 8, "word_size": 5, "caption_hidden_size": 6, "caption_word_size": 5},
    "scan": {"embedding_size": 8, "word_size": 5},
    "bfan": {"embedding_size": 8, "word_size": 5},
    "saf": {"embedding_size": 8, "word_size": 5, "similarity_size": 4, "regions": 4},
    "naaf": {"embedding_size": 8, "word_size": 5, "alpha_schedule": "adaptive"},
    "vse_infinity": {"embedding_size": 8, "word_size": 5},
}


class KilledError(Exception):
    pass


@pytest.fixture
def run_training(pairs, sampler, monkeypatch):
    monkeypatch.setattr(resumable, "LOG_STEPS", 2)
    monkeypatch.setattr(naaf, "FEWEST_WORDS", 4)

    def run(work: Path, name="vsepp", kill_at=None, training=TRAINING, sampler=sampler, workers=0):
        work.mkdir(exist_ok=True)
        torch.manual_seed(3)
        options = {**OPTIONS[name], "feature_size": 6, "vocabulary_size": 24}
        model = build_model(name, **options)
        steps = []

        def progress(done, total, text):
            steps.append(done)
            if kill_at is not None and done >= kill_at:
                raise KilledError

        def validate(models):
            (model,) = models
            return retrieval_ranks(similarity_matrix(model, pairs, torch.device("cpu")), pairs.split.image_of)

        settings = Run(work, torch.device("cpu"), checkpoint_steps=4, progress=progress, workers=workers)
        description = {"name": name, "options": options}
        where = {"description": description, "pairs": pairs, "seed": 5, "run": settings}
        return Trainer(models=[model], schedule=training, sampler=sampler, **where).train(validate), steps

    return run


@pytest.mark.parametrize("workers", [1, 3])
def test_reading_ahead_changes_nothing_and_leaves_no_thread(run_training, tmp_path, workers):
    whole, _ = run_training(tmp_path / "whole")
    for kill_at in (4, 12):
        cut = tmp_path / f"cut{kill_at}"
        with pytest.raises(KilledError):
            run_training(cut, kill_at=kill_at, workers=workers)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("batches")]
        resumed, _ = run_training(cut, workers=workers)
        assert resumed["final_weights_sha256"] == whole["final_weights_sha256"]
        assert timeless(cut) == timeless(tmp_path / "whole")


def test_what_a_worker_finds_wrong_ends_the_training(run_training, sampler, tmp_path, monkeypatch):
    def refuse(*_):
        raise ValueError("row 7 is damaged; prepare it again.")

    monkeypatch.setattr(sampler, "draw", refuse)
    with pytest.raises(ValueError, match=r"^row 7 is damaged; prepare it again\.$"):
        run_training(tmp_path, workers=2)
    assert [line["epoch"] for line in lines(tmp_path) if "dev_rsum" in line] == [0, 1]  # the warm-up draws nothing


def test_triples_train_with_the_same_steps(run_training, tmp_path):
    loss = AdaptiveLoss(name="adapoffquin", companions="anchors")
    training = TRAINING.model_copy(update={"loss": loss})
    whole, _ = run_training(tmp_path / "whole", training=training)
    plain, _ = run_training(tmp_path / "plain")
    assert whole["steps"] == plain["steps"]
    assert whole["final_weights_sha256"] != plain["final_weights_sha256"]
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", kill_at=14, training=training)
    resumed, _ = run_training(tmp_path / "cut", training=training)
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"]


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "bfan"])
def test_killed_and_resumed_ends_at_the_same_weights(run_training, tmp_path, name):
    whole, _ = run_training(tmp_path / "whole", name)
    for kill_at in (1, 4, 7, 12) if name in ("vsepp", "scan") else (7,):
        cut = tmp_path / f"cut{kill_at}"
        with pytest.raises(KilledError):
            run_training(cut, name, kill_at=kill_at)
        resumed, steps = run_training(cut, name)
        assert resumed["final_weights_sha256"] == whole["final_weights_sha256"]
        assert resumed["dev_rsum_by_epoch"] == whole["dev_rsum_by_epoch"]
        assert (cut / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
        assert kill_at < 5 or steps[0] > 4  # it did not start over
        assert timeless(cut) == timeless(tmp_path / "whole")


def timeless(work):
    return [{name: value for name, value in line.items() if name != "steps_per_second"} for line in lines(work)]


def test_a_plateau_is_still_one_after_a_kill(run_training, tmp_path, monkeypatch, caplog):
    """Everything counts as a plateau here after nine steps."""
    for name, value in (("NEAR", 1e9), ("GAP", 1e9), ("PATIENCE", 9)):
        monkeypatch.setattr(collapse, name, value)
    run_training(tmp_path / "whole")
    assert caplog.text.count("the plateau of a model") == 1
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", kill_at=7)
    run_training(tmp_path / "cut")
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    flags = [line["collapsed"] for line in lines(tmp_path / "cut") if "collapsed" in line]
    assert flags.count(False) == 5  # after 2, 4, 5, 6 and 8 steps
    assert caplog.text.count("the plateau of a model") == 2


@pytest.mark.parametrize("name", ["bfan", "naaf"])
def test_constrained_and_resumed_ends_at_the_same_weights(run_training, tmp_path, name):
    constrained = TRAINING.model_copy(update={"constraints": BOTH})
    whole, _ = run_training(tmp_path / "whole", name, training=constrained)
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", name, training=constrained, kill_at=7)
    resumed, _ = run_training(tmp_path / "cut", name, training=constrained)
    free, _ = run_training(tmp_path / "free", name)
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"] != free["final_weights_sha256"]


@pytest.mark.parametrize("chosen", [("ccr",), ("ccs",), ("ccr", "ccs")], ids="+".join)
def test_constraints_are_added_to_every_loss_and_logged(run_training, tmp_path, chosen):
    constraints = BOTH.model_copy(update={name: None for name in ("ccr", "ccs") if name not in chosen})
    run_training(tmp_path, "scan", training=TRAINING.model_copy(update={"constraints": constraints}))
    for line in (line for line in lines(tmp_path) if "loss" in line):
        weighed = sum(getattr(BOTH, name).weight * line[name] for name in chosen)
        assert weighed > 0
        assert line["auxiliary_loss"] == pytest.approx(weighed, abs=1e-4)
        assert line["loss"] == pytest.approx(line["retrieval_loss"] + weighed, abs=1e-4)
        assert ("ccr" in line, "ccs" in line) == ("ccr" in chosen, "ccs" in chosen)


def test_constraints_on_a_model_without_attention_are_an_error(run_training, tmp_path):
    with pytest.raises(ValueError, match=r"VSEpp compares whole images and captions and has no attention"):
        run_training(tmp_path, "vsepp", training=TRAINING.model_copy(update={"constraints": BOTH}))


def test_models_hear_of_every_epoch_and_step_once(run_training, monkeypatch, tmp_path):
    heard = []
    monkeypatch.setattr(naaf.NAAF, "begin_epoch", lambda self, epoch, epochs: heard.append((epoch, epochs)))
    monkeypatch.setattr(naaf.NAAF, "observe", lambda self, images, captions, matrix: heard.append(matrix.shape))
    with pytest.raises(KilledError):
        run_training(tmp_path, "naaf", kill_at=10)
    run_training(tmp_path, "naaf")
    epochs = [call for call in heard if isinstance(call, tuple) and not isinstance(call, torch.Size)]
    assert epochs == [(epoch, 4) for epoch in range(4)]
    assert len(heard) - len(epochs) == 4 * 5 + 2  # the steps after the last checkpoint, twice


def lines(work):
    return [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]


def test_metrics_say_what_is_promised(run_training, tmp_path):
    result, _ = run_training(tmp_path)
    steps = [line for line in lines(tmp_path) if "loss" in line]
    offline = [line for line in steps if line["loss_name"] == "adapoffquin"]
    assert {line["loss_name"] for line in steps} == {"sum", "online", "adapoffquin"}
    for key in (
        "online",
        "offline",
        "derived",
        "weight_mean",
        "weight_negative_share",
        "offline_above_positive_share",
        "collision_rate",
        "learning_rate",
        "steps_per_second",
        "gradient_norm",
        "collapsed",
    ):
        assert key in offline[0], key
    dev = [line for line in lines(tmp_path) if "dev_rsum" in line]
    assert [round(line["dev_rsum"], 3) for line in dev] == result["dev_rsum_by_epoch"]
    assert result["metrics"]["rsum"] == pytest.approx(max(line["dev_rsum"] for line in dev))
    assert offline[-1]["learning_rate"] == pytest.approx(1e-3)


def test_the_best_weights_are_kept_and_load(run_training, pairs, tmp_path):
    result, _ = run_training(tmp_path)
    model = load_model(tmp_path / "model.safetensors")
    metrics = evaluate_similarity(similarity_matrix(model, pairs, torch.device("cpu")), pairs.split.image_of)
    assert metrics == result["metrics"]


@pytest.mark.parametrize("name", ["vsepp", "vse_infinity"])
def test_training_learns(run_training, tmp_path, name):
    longer = TRAINING.model_copy(update={"epochs": 9, "decay_epochs": ()})
    result, _ = run_training(tmp_path, name, training=longer)
    assert result["metrics"]["rsum"] > result["dev_rsum_by_epoch"][0] + 20


def test_schedules():
    assert [epoch_loss(TRAINING, epoch).name for epoch in range(4)] == ["sum", "online", "adapoffquin", "adapoffquin"]
    assert epoch_loss(TRAINING, 0).margin == 0.2
    stepped = TRAINING.model_copy(update={"decay_epochs": (1, 3)})
    assert [learning_rate(stepped, epoch) for epoch in range(4)] == pytest.approx([1e-2, 1e-3, 1e-3, 1e-4])


def test_weights_decay_where_it_is_asked_for():
    """AdamW without a gradient: w <- w (1 - learning rate * decay); Adam leaves w as it is."""
    for asked, factor in ((None, 1.0), (0.5, 1 - 1e-2 * 0.5)):
        model = build_model("vsepp", feature_size=6, vocabulary_size=24, **OPTIONS["vsepp"])
        before = {name: one.detach().clone() for name, one in model.named_parameters()}
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        make_optimizer(model, TRAINING.model_copy(update={"weight_decay": asked})).step()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.detach(), factor * before[name])


def test_decaying_weights_resume_to_the_bit(run_training, tmp_path):
    decaying = TRAINING.model_copy(update={"weight_decay": 0.1})
    whole, _ = run_training(tmp_path / "whole", training=decaying)
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", training=decaying, kill_at=7)
    resumed, _ = run_training(tmp_path / "cut", training=decaying)
    plain, _ = run_training(tmp_path / "plain")
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"] != plain["final_weights_sha256"]


@pytest.mark.parametrize("name", ["vsepp", "scan"])
def test_a_training_in_bfloat16_keeps_weights_in_float32_and_resumes_to_the_bit(run_training, tmp_path, name):
    rounded = TRAINING.model_copy(update={"precision": "bfloat16", "start_up": "auto"})
    whole, _ = run_training(tmp_path / "whole", name, training=rounded)
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", name, training=rounded, kill_at=12)
    resumed, _ = run_training(tmp_path / "cut", name, training=rounded)
    plain, _ = run_training(tmp_path / "plain", name, training=rounded.model_copy(update={"precision": "float32"}))
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"] != plain["final_weights_sha256"]
    assert {one.dtype for one in load_model(tmp_path / "whole" / "model.safetensors").parameters()} == {torch.float32}


class Towered(VSEpp):
    """A model whose GRU is taken for a pretrained tower."""

    def pretrained_parameters(self):
        return [*self.text.parameters()]


def test_a_tower_has_a_share_of_the_learning_rate_and_resumes_to_the_bit(run_training, monkeypatch, tmp_path):
    monkeypatch.setitem(MODELS, "towered", Towered)
    monkeypatch.setitem(OPTIONS, "towered", OPTIONS["vsepp"])
    rates, steps = [], []
    monkeypatch.setattr(
        torch.optim.Adam,
        "step",
        lambda self, step=torch.optim.Adam.step: (
            rates.append([group["lr"] for group in self.param_groups]),
            step(self),
        ),
    )
    whole, _ = run_training(tmp_path / "whole", "towered")
    assert rates[0] == pytest.approx([1e-2, 1e-3])
    assert rates[-1] == pytest.approx([1e-3, 1e-4])
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", "towered", kill_at=17)
    resumed, steps = run_training(tmp_path / "cut", "towered")
    assert steps[0] > 4
    assert rates[-1] == pytest.approx([1e-3, 1e-4])
    plain, _ = run_training(tmp_path / "plain", "vsepp")
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"] != plain["final_weights_sha256"]


def test_the_sampler_counts_from_the_first_epoch_that_draws(run_training, sampler, tmp_path, monkeypatch):
    heard, draw = [], sampler.draw

    def listen(captions, rng, epoch):
        heard.append(epoch)
        return draw(captions, rng, epoch)

    monkeypatch.setattr(sampler, "draw", listen)
    run_training(tmp_path, training=TRAINING.model_copy(update={"epochs": 5}))
    assert heard == [epoch for epoch in range(3) for _ in range(5)]


@pytest.mark.parametrize("companions", [None, "anchors"])
def test_a_paced_training_says_its_hardness_and_resumes_to_the_bit(run_training, tmp_path, caplog, companions):
    caplog.set_level(logging.INFO)
    loss = AdaptiveLoss(name="adapoffquin", companions=companions)
    paced = TRAINING.model_copy(update={"start_up": "auto", "warmup": (), "loss": loss, "epochs": 8})
    whole, _ = run_training(tmp_path / "whole", training=paced)
    plain, _ = run_training(tmp_path / "plain", training=paced.model_copy(update={"start_up": None}))
    assert whole["final_weights_sha256"] != plain["final_weights_sha256"]
    assert "hardness_by_epoch" not in plain
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", training=paced, kill_at=7)
    resumed, _ = run_training(tmp_path / "cut", training=paced)
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"]
    assert resumed["hardness_by_epoch"] == whole["hardness_by_epoch"]
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    by_step = [line["hardness"] for line in lines(tmp_path / "whole") if "loss" in line]
    assert 0 <= by_step[0] < max(by_step) <= 1
    assert len(whole["hardness_by_epoch"]) == 8
    assert f"epoch 8: online negatives are of hardness {whole['hardness_by_epoch'][-1]}" in caplog.text


@pytest.mark.parametrize("companions", [None, "anchors"])
def test_it_notes_how_many_offline_negatives_were_harder_than_the_batchs(
    run_training, tmp_path, monkeypatch, companions
):
    monkeypatch.setattr(resumable, "LOG_STEPS", 4)  # windows of several lengths
    drawing = TRAINING.model_copy(update={"loss": AdaptiveLoss(name="adapoffquin", companions=companions)})
    notes, _ = run_training(tmp_path, training=drawing)
    by_step = [line["offline_harder_share"] for line in lines(tmp_path) if "offline_harder_share" in line]
    assert all(0 <= share <= 1 for share in by_step)
    monkeypatch.setattr(resumable, "LOG_STEPS", 1)
    run_training(tmp_path / "by_step", training=drawing)
    last = [
        line["offline_harder_share"]
        for line in lines(tmp_path / "by_step")
        if line["epoch"] == drawing.epochs - 1 and "loss" in line
    ]
    assert notes["offline_harder_by_epoch"][-1] == pytest.approx(np.mean(last), abs=1e-3)
    assert len(notes["offline_harder_by_epoch"]) == drawing.epochs - len(drawing.warmup)


def test_an_offline_loss_without_a_table_is_an_error(run_training, tmp_path):
    with pytest.raises(ValueError, match="'adapoffquin' draws from a negative table, and there is none"):
        run_training(tmp_path, sampler=None, training=TRAINING.model_copy(update={"warmup": ()}))


def test_a_loss_that_is_not_finite_is_an_error(run_training, pairs, tmp_path):
    pairs.split.features[3] = np.nan
    with pytest.raises(ValueError, match=r"a loss of epoch 0, step \d+ is not finite; check the features"):
        run_training(tmp_path, training=TRAINING.model_copy(update={"loss": OnlineLoss(name="online"), "warmup": ()}))


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize("place", [100, -1, 5000])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(run_training, tmp_path, caplog, place):
    whole, _ = run_training(tmp_path / "whole")
    cut = tmp_path / "cut"
    with pytest.raises(KilledError):
        run_training(cut, kill_at=17)  # in the fourth epoch: a checkpoint at the third's end, and one within
    assert (cut / UNITS / "previous.ckpt").exists()
    flip(cut / UNITS / "last.ckpt", place)
    resumed, steps = run_training(cut)
    assert "last.ckpt is damaged or not a checkpoint (its checksum is another)." in caplog.text
    assert steps[0] > 5
    check_the_same(cut, tmp_path / "whole", resumed, whole)


def check_the_same(cut, whole, resumed, result):
    assert resumed["final_weights_sha256"] == result["final_weights_sha256"]
    assert (cut / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert timeless(cut) == timeless(whole)
    left = {path.name for path in cut.iterdir() if path.suffix != ".work"}
    assert left == {"metrics.jsonl", "model.safetensors", "dev_ranks.parquet", UNITS}


def test_a_training_begun_by_an_earlier_version_goes_on(run_training, tmp_path):
    whole, _ = run_training(tmp_path / "whole")
    cut = tmp_path / "cut"
    with pytest.raises(KilledError):
        run_training(cut, kill_at=17)
    for path in [*(cut / UNITS).iterdir()]:
        path.rename(cut / path.name)
    (cut / UNITS).rmdir()
    resumed, steps = run_training(cut)
    assert steps[0] > 5
    check_the_same(cut, tmp_path / "whole", resumed, whole)


@pytest.mark.parametrize("damaged", ["checkpoints", "best weights", "metrics"])
def test_without_a_whole_checkpoint_a_training_starts_anew(run_training, tmp_path, caplog, damaged):
    whole, _ = run_training(tmp_path / "whole")
    cut = tmp_path / "cut"
    with pytest.raises(KilledError):
        run_training(cut, kill_at=17)
    patterns = {
        "checkpoints": f"{UNITS}/*.ckpt",
        "best weights": f"{UNITS}/best-*/model.safetensors",
        "metrics": "metrics.jsonl",
    }
    for path in cut.glob(patterns[damaged]):
        flip(path, 40)
    resumed, steps = run_training(cut)
    assert f"no checkpoint in {cut / UNITS} is whole: the training starts anew" in caplog.text
    assert steps[0] <= 2
    check_the_same(cut, tmp_path / "whole", resumed, whole)


def test_best_weights_that_are_damaged_meanwhile_are_not_published(run_training, tmp_path, monkeypatch):
    def damage_and_save(path, *given):
        if path.name == "final.safetensors":
            flip(*[(found, 40) for found in path.parent.glob("best-*/model.safetensors")][-1])
        save_model(path, *given)

    monkeypatch.setattr(resumable, "save_model", damage_and_save)
    with pytest.raises(ValueError, match=r"model.safetensors was damaged after it was written; run again"):
        run_training(tmp_path / "cut")
    monkeypatch.undo()
    assert not (tmp_path / "cut" / "model.safetensors").exists()


def test_a_training_killed_between_any_two_changes_of_its_files_ends_the_same(run_training, tmp_path, monkeypatch):
    """Every rename and removal is one to be killed before."""
    short = TRAINING.model_copy(update={"epochs": 2})
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


def logits_training(name, **numbers):
    """Both the loss's own numbers and a warm-up that has none of them."""
    loss = LossSection.kind(name)(name=name, **numbers)
    return TRAINING.model_copy(update={"loss": loss, "warmup": ("sum",)})


@pytest.mark.parametrize("model", ["vsepp", "scan"])
@pytest.mark.parametrize("loss", ["infonce", "adapinfonce", "sigmoid"])
def test_what_a_loss_learns_is_resumed_to_the_bit(run_training, tmp_path, model, loss):
    training = logits_training(loss)
    whole, _ = run_training(tmp_path / "whole", model, training=training)
    with pytest.raises(KilledError):
        run_training(tmp_path / "cut", model, training=training, kill_at=14)
    resumed, steps = run_training(tmp_path / "cut", model, training=training)
    assert steps[0] > 4  # it did not start over
    assert resumed["learnt_by_epoch"] == whole["learnt_by_epoch"]
    assert resumed["final_weights_sha256"] == whole["final_weights_sha256"]
    assert timeless(tmp_path / "cut") == timeless(tmp_path / "whole")
    first, *_, last = whole["learnt_by_epoch"]
    begins = {name: getattr(training.loss, name) for name in first}
    assert first == pytest.approx(begins)  # the warm-up learns none of it
    assert all(last[name] != pytest.approx(begins[name], rel=1e-3) for name in begins)
    assert ("bias" in last) == (loss == "sigmoid")
    logged = [line["temperature"] for line in lines(tmp_path / "whole") if line.get("loss_name") == loss]
    assert min(logged) < max(logged)
    assert logged[-1] == pytest.approx(last["temperature"], rel=0.05)


def test_what_a_loss_learns_does_not_decay():
    training = logits_training("sigmoid").model_copy(update={"weight_decay": 0.1})
    learnt, model = learnt_numbers(training.loss), build_model("vsepp", feature_size=6, vocabulary_size=24)
    weights, besides = make_optimizer(model, training, learnt.parameters()).param_groups
    assert (weights["weight_decay"], besides["weight_decay"]) == (0.1, 0.0)
    assert besides["params"] == list(learnt.parameters())


def test_the_published_weights_are_the_models_alone(run_training, tmp_path):
    run_training(tmp_path, training=logits_training("infonce"))
    load_model(tmp_path / "model.safetensors")  # refuses what has no place in the model


def test_numbers_that_stay_are_not_learnt(run_training, tmp_path):
    notes, _ = run_training(tmp_path, training=logits_training("infonce", learn_temperature=False, temperature=0.2))
    assert "learnt_by_epoch" not in notes
    assert {line["temperature"] for line in lines(tmp_path) if line.get("loss_name") == "infonce"} == {0.2}


def test_a_temperature_stops_at_its_bound(run_training, tmp_path):
    steep = {"learning_rate": 0.5, "epochs": 6, "decay_epochs": ()}
    training = logits_training("infonce", max_scale=20.0).model_copy(update=steep)
    notes, _ = run_training(tmp_path, training=training)
    assert min(epoch["temperature"] for epoch in notes["learnt_by_epoch"]) >= 0.05 - 1e-6


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
def test_without_a_table_the_batch_is_all_there_is(run_training, tmp_path, loss, caplog):
    """`start_up` has no part in it, and says so; the plateau is that of the batch's own columns."""
    caplog.set_level(logging.INFO)
    alone = logits_training(loss).model_copy(update={"warmup": ()})
    plain, _ = run_training(tmp_path / "plain", training=alone, sampler=None)
    started = alone.model_copy(update={"start_up": "auto"})
    paced, _ = run_training(tmp_path / "paced", training=started, sampler=None)
    assert paced["final_weights_sha256"] == plain["final_weights_sha256"]
    assert "hardness_by_epoch" not in paced
    assert caplog.text.count(f"start_up has no part in a training with loss '{loss}'") == 1
    drawn, _ = run_training(tmp_path / "drawn", training=alone)
    assert drawn["final_weights_sha256"] != plain["final_weights_sha256"]
    assert ("offline_harder_by_epoch" in drawn, "offline_harder_by_epoch" in plain) == (True, False)
    if loss == "infonce":
        by_step = [line["plateau"] for line in lines(tmp_path / "plain") if "plateau" in line]
        assert all(2 * 8 * math.log(6) < plateau <= 2 * 10 * math.log(10) for plateau in by_step)  # few share an image


@pytest.mark.parametrize("loss", ["infonce", "adapinfonce", "sigmoid"])
def test_companions_are_anchors_of_losses_on_logits_too(run_training, tmp_path, loss):
    training = logits_training(loss, companions="anchors")
    notes, _ = run_training(tmp_path, training=training)
    plain, _ = run_training(tmp_path / "plain", training=logits_training(loss))
    assert notes["steps"] == plain["steps"]
    assert notes["final_weights_sha256"] != plain["final_weights_sha256"]
    with pytest.raises(ValueError, match=f"'{loss}' draws from a negative table, and there is none"):
        run_training(tmp_path / "none", training=training, sampler=None)


def test_a_collapse_of_a_loss_on_logits_is_said_without_a_start_up(run_training, tmp_path, monkeypatch, caplog):
    for name, value in (("NEAR", 1e9), ("GAP", 1e9), ("PATIENCE", 9)):
        monkeypatch.setattr(collapse, name, value)
    run_training(tmp_path, training=logits_training("infonce").model_copy(update={"warmup": ()}))
    assert "the infonce loss has sat at" in caplog.text
    assert "Try a lower learning rate." in caplog.text
