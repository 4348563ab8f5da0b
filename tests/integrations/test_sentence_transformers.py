"""The SentenceTransformerTrainer with our data, batches and losses, on a CLIP that sees the pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from torch.nn import functional as F
from transformers import TrainerCallback

import aoq
from aoq.integrations.sentence_transformers import (
    DistilledLoss,
    OfflineInfoNCELoss,
    OfflineQuintupletLoss,
    OfflineTripletLoss,
    RecallEvaluator,
    TableData,
)
from tests.exports.conftest import EACH
from tests.integrations.conftest import ADAPTIVE, MARGINS, distillation

pytestmark = [pytest.mark.integrations, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def model(clip):
    return SentenceTransformer(str(clip), device="cpu")


@pytest.fixture
def data(world):
    def make(**options):
        return TableData(world.table, world.pictures, world.captions, **options)

    return make


def trained(model, data, loss, tmp_path, steps=3, **arguments):
    """Train; return what the trainer logged and the batches that it saw."""
    seen = []

    class See(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            seen.append(logs)

    given = {"output_dir": str(tmp_path / "run"), "report_to": "none", "save_strategy": "no", "use_cpu": True}
    given |= {"max_steps": steps, "per_device_train_batch_size": 6, "logging_steps": 1, "dataloader_drop_last": True}
    options = SentenceTransformerTrainingArguments(**given | arguments, batch_sampler=data.batches)
    trainer = SentenceTransformerTrainer(model, options, data.dataset, loss=loss, callbacks=[See()])
    assert trainer.train().global_step == steps
    return seen


def test_rows_are_true_pairs_with_their_negatives_and_companions(world, data):
    rows = data(seed=3).dataset[list(range(10))]
    drawn = aoq.BatchSampler(world.table, batch_size=2, seed=3).draw_each(np.arange(10), 0)
    for group, prefix in enumerate(("", "offline_", "companion_")):
        assert [Path(path).stem for path in rows[f"{prefix}image"]] == [world.ids[i] for i in drawn[group, :, 0]]
        assert rows[f"{prefix}caption"] == [world.captions[c] for c in drawn[group, :, 1]]
        assert [label[group] for label in rows["label"]] == drawn[group, :, 0].tolist()
    for (i, c), (i_off, c_off), (i_own, c_own) in drawn.transpose(1, 0, 2).tolist():
        assert (c // EACH, c_off // EACH, c_own // EACH) == (i, i_own, i_off)
        assert c_off in world.table.i2t.negative_ids[i]
        assert i_off in world.table.t2i.negative_ids[c]


def features(model, rows):
    return [model.preprocess(column) for column in rows.values()]


def total(value):
    """The sum of a loss that gives its terms, or the loss."""
    return sum(value.values()) if isinstance(value, dict) else value


def encoded(model, rows, labels):
    """All images, all captions, and a function that sets offline similarities beside those of the first 8 pairs."""
    with torch.no_grad():
        vectors = [F.normalize(model(column)["sentence_embedding"], dim=1) for column in features(model, rows)]
    images, captions = torch.cat(vectors[::2]), torch.cat(vectors[1::2])
    is_positive = aoq.positive_pairs(labels[:, 0], mask_positives=True)
    return images, captions, lambda offline: aoq.Similarities(images[:8] @ captions[:8].T, is_positive, offline)


@pytest.mark.parametrize(
    ("loss", "function", "numbers"),
    [
        (OfflineQuintupletLoss, aoq.adap_off_quin, MARGINS | ADAPTIVE),
        (lambda model: OfflineQuintupletLoss(model, adaptive=False), aoq.off_quin, MARGINS),
        (OfflineTripletLoss, aoq.off_tri, MARGINS),
        (lambda model: OfflineTripletLoss(model, adaptive=True), aoq.adap_off_tri, MARGINS | ADAPTIVE),
        (OfflineInfoNCELoss, aoq.info_nce, {"temperature": 0.05}),
        (lambda model: OfflineInfoNCELoss(model, adaptive=True), aoq.adap_info_nce, {"temperature": 0.05} | ADAPTIVE),
    ],
)
def test_losses_are_ours_on_the_same_similarities(model, data, loss, function, numbers):
    """Mini-batches give the same losses and gradients too."""
    loss = loss(model)
    rows = data(negatives="quintuplet" if len(loss.columns) == 6 else "offline").dataset[list(range(8))]
    labels = torch.tensor(rows.pop("label"))
    images, captions, similarities = encoded(model, rows, labels)
    offline = aoq.offline_similarities(images, captions, labels.T.flatten(), companions=len(loss.columns) == 6)
    expected = function(similarities(offline), **numbers).total / 8
    model.eval()

    def gradients(mini_batch_size):
        loss.mini_batch_size, loss.uses_gradient_cache = mini_batch_size, mini_batch_size > 0
        model.zero_grad()
        value = total(loss(features(model, rows), labels))
        torch.testing.assert_close(value.detach(), expected, rtol=1e-4, atol=1e-5)
        value.backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    whole, parts = gradients(0), gradients(3)
    assert any(gradient.abs().sum() > 0 for gradient in whole)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "function", "numbers"),
    [(OfflineInfoNCELoss, aoq.info_nce, {"temperature": 0.05}), (OfflineTripletLoss, aoq.off_tri, MARGINS)],
)
def test_several_negatives_are_candidates_for_the_whole_batch(model, data, world, kind, function, numbers, teachers):
    made = data(negatives=2)
    rows = made.dataset[list(range(8))]
    assert list(rows)[2:6] == ["offline_image_1", "offline_caption_1", "offline_image_2", "offline_caption_2"]
    labels = torch.tensor(rows.pop("label"))
    sampler = aoq.BatchSampler(world.table, batch_size=8, companions="omit", negatives=2)
    drawn = np.concatenate(sampler.draw_each(np.arange(8), 0))
    assert labels.T.tolist() == [*drawn.reshape(3, 8, 2)[..., 0].tolist(), *drawn.reshape(3, 8, 2)[..., 1].tolist()]
    both = {"negatives": 2, "table": world.table}
    loss = kind(model, **both)
    images, captions, similarities = encoded(model, rows, labels)
    offline = aoq.offline_similarities(images, captions, excluded=sampler.excluded(drawn))
    assert offline.others is not None
    expected = function(similarities(offline), **numbers).total / 8
    found = total(loss(features(model, rows), labels))
    torch.testing.assert_close(found.detach(), expected, rtol=1e-4, atol=1e-5)
    taught = DistilledLoss(loss, world.table, teachers, weight=0.5)(features(model, rows), labels)
    term = distillation(images[:8], captions[:8], drawn[:8].tolist(), teachers)
    assert taught["distillation_loss"].item() == pytest.approx(0.5 * term, rel=1e-4)
    for wrong, other in ((kind, {"negatives": 2}), (kind, {"table": world.table}), (OfflineQuintupletLoss, both)):
        with pytest.raises(ValueError, match="several `negatives` need the `table`, and OfflineInfoNCELoss or"):
            wrong(model, **other)
    with pytest.raises(ValueError, match="negatives is 0"):
        data(negatives=0)


@pytest.mark.parametrize(
    ("make", "negatives"),
    [
        (OfflineTripletLoss, "offline"),
        (lambda model: OfflineTripletLoss(model, mini_batch_size=2), "offline"),
        (MultipleNegativesRankingLoss, None),
        (lambda model: CachedMultipleNegativesRankingLoss(model, mini_batch_size=2), None),
    ],
)
def test_teachers_score_pairs_by_the_rows_of_the_table(model, data, world, teachers, make, negatives):
    base = make(model)
    loss = DistilledLoss(base, world.table, teachers, weight=0.5)
    rows = data(negatives=negatives, caption_rows=True).dataset[[7, 2, 22, 3, 11]]
    labels = torch.tensor(rows.pop("label"))
    images, captions = (model(column)["sentence_embedding"] for column in features(model, rows)[:2])
    alone = total(base(features(model, rows), labels[:, :-1])).item()
    expected = alone + 0.5 * distillation(images, captions, labels[:, [0, -1]].tolist(), teachers)
    assert total(loss(features(model, rows), labels)).item() == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="have no rows of captions"):
        loss(features(model, rows), labels[:, :-1])


def test_three_steps_on_several_negatives(model, data, world, tmp_path):
    loss = OfflineInfoNCELoss(model, negatives=3, table=world.table, mini_batch_size=4)
    assert len(trained(model, data(negatives=3), loss, tmp_path)) > 3


def test_three_steps_see_pictures_and_log_the_terms(model, data, tmp_path):
    seen = []
    clip = model[0].auto_model if hasattr(model[0], "auto_model") else model[0].model
    clip.vision_model.register_forward_pre_hook(
        lambda _, arguments, named: seen.append(len(named.get("pixel_values", arguments[0] if arguments else ()))),
        with_kwargs=True,
    )
    logs = trained(model, data(), OfflineQuintupletLoss(model), tmp_path)
    assert sum(seen) == 3 * 6 * 3
    first = logs[0]
    assert first["loss"] == pytest.approx(
        first["online_loss"] + first["offline_loss"] + first["derived_loss"], abs=2e-3
    )


@pytest.mark.parametrize("batches", [None, "mined"])
def test_an_epoch_has_each_pair_once_and_the_next_one_another_order(data, batches):
    made = data(batches=batches, community=3) if batches else data()
    sampler = made.batches(made.dataset, 6, False)
    first = list(sampler)
    assert sorted(row for batch in first for row in batch) == list(range(30))
    assert [len(batch) for batch in first] == [6] * 5 == [6] * len(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first


def test_options_and_tables_that_the_losses_cannot_follow_are_refused(world, data):
    vectors = np.random.default_rng(0).normal(size=(15, 4)), np.random.default_rng(1).normal(size=(30, 4))
    pairs = [[caption // 2, caption] for caption in range(30)] + [[14, 0]]
    several = aoq.hard_negatives(queries=vectors[0], documents=vectors[1], positives=np.array(pairs), h=3)
    couples = aoq.hard_negatives(queries=vectors[1], positives=np.arange(30).reshape(15, 2), h=3)
    for wrong in ({}, {"negatives": "offline"}, {"negatives": None, "batches": "triples"}):
        with pytest.raises(ValueError, match="a caption has several images; give a number of `negatives`"):
            TableData(several, world.pictures, world.captions, **wrong)
        with pytest.raises(ValueError, match="the table has one set; give a number of `negatives`"):
            TableData(couples, world.captions, world.captions, **wrong)
    TableData(several, world.pictures, world.captions, negatives=None)  # for losses of others
    with pytest.raises(ValueError, match="leave `shared` out"):
        data(negatives=4, shared=False)


def test_pairs_that_a_screen_makes_positives_are_drawn(world):
    known = np.array([[image, world.table.i2t.negative_ids[image, 0]] for image in range(15)], np.int32)
    screened = world.table.screen(positives=known, suspected="positive")
    with pytest.raises(ValueError, match='suspected = "positive" needs a number of `negatives`'):
        TableData(screened, world.pictures, world.captions)
    data = TableData(screened, world.pictures, world.captions, negatives=1)
    batches = data.batches(data.dataset, 6, False)
    assert sorted(row for batch in batches for row in batch) == list(range(30))
    pairs = set()
    for epoch in range(4):
        data.set_epoch(epoch)
        rows = data.dataset[list(range(30))]
        images = [world.ids.index(Path(path).stem) for path in rows["image"]]
        pairs |= {
            (image, world.captions.index(caption)) for image, caption in zip(images, rows["caption"], strict=True)
        }
    true = {*map(tuple, world.table.positives.tolist())}
    assert pairs - true
    assert pairs <= true | {*map(tuple, known.tolist())}


def test_triples_train_any_loss_on_pairs(model, data, world, tmp_path):
    made = data(negatives=None, batches="triples")
    sampler = made.batches(made.dataset, 6, True)
    expected = aoq.BatchSampler(world.table, batch_size=6, companions="anchors")
    for batch, pairs in zip(sampler, expected, strict=True):
        assert [made.dataset[row]["label"][0] for row in batch] == pairs[:, 0].tolist()
        assert [made.dataset[row]["caption"] for row in batch] == [world.captions[c] for c in pairs[:, 1]]
    trained(model, made, OfflineQuintupletLoss(model, companions="anchors"), tmp_path)


def test_the_evaluator_gives_our_recalls(model, world, tmp_path):
    image_of = np.arange(30) // EACH
    evaluator = RecallEvaluator(world.pictures, world.captions, image_of, name="dev")
    found = evaluator(model)
    images, captions = (model.encode(side, normalize_embeddings=True) for side in (world.pictures, world.captions))
    expected = aoq.recalls(images @ captions.T, image_of)
    assert {f"dev_{name}": value for name, value in expected.items()}.items() <= found.items()
    assert evaluator.primary_metric == "dev_rsum"


@pytest.mark.parametrize("cached", ["0", "2"])
def test_two_processes_train_as_one_does(clip, world, tmp_path, cached):
    """Two steps on the same batches, all in one process or shared by two: the same weights."""
    script = Path(__file__).parent / "two_processes.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    weights = []
    for command in ([sys.executable], launch):
        given = [*command, script, clip, world.folder, cached, tmp_path / "run"]
        ended = subprocess.run([str(one) for one in given], capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        weights.append(next(json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")))
    assert np.hstack(weights[1]) == pytest.approx(np.hstack(weights[0]), rel=1e-4, abs=1e-6)


def test_what_does_not_fit_is_refused(model, data):
    made = data()
    with pytest.raises(ValueError, match="has 5 rows and the table 30 pairs"):
        made.batches(made.dataset.select(range(5)), 4, False)
    rows = data(negatives="offline").dataset[[0, 1]]
    labels = torch.tensor(rows.pop("label"))
    with pytest.raises(ValueError, match="companion_image, companion_caption, but the data has 4"):
        OfflineQuintupletLoss(model)(features(model, rows), labels)
    with pytest.raises(ValueError, match="the labels are none"):
        OfflineTripletLoss(model)(features(model, rows), None)
