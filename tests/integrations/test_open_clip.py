"""Data, losses and rows for open_clip, without it; `test_open_clip_training.py` trains with it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import aoq
from aoq.integrations.open_clip import (
    DistilledLoss,
    OfflineClipLoss,
    OfflineQuintupletLoss,
    OfflineSigLipLoss,
    TableData,
    carry_rows,
    losses,
    read_negclip,
)
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.data.images import decode
from aoq.pipeline.prepare.photographs import open_photographs
from tests.exports.conftest import EACH, PICTURES
from tests.integrations.conftest import ADAPTIVE, MARGINS, distillation

LENGTH = 4
SCALE, BIAS = torch.tensor(7.0), torch.tensor(-2.0)


def preprocess(picture):
    """The row of the image that a picture shows, as a tensor."""
    assert picture.mode == "RGB"
    return torch.full((3, 2, 2), picture.getpixel((0, 0))[0] // 16)


def tokenizer(texts):
    """Turn "a caption of image 7, 1" into the numbers 7 and 1."""
    numbers = [text.rsplit(" ", 2)[1:] for text in texts]
    return torch.tensor([[1, int(image.rstrip(",")), int(which), 2] for image, which in numbers])


TAKING = {"preprocess": preprocess, "tokenizer": tokenizer}
WHOLE = {"images": range(15), "captions": [""] * 30, **TAKING}


@pytest.fixture
def data(world):
    return TableData(world.table, world.pictures, world.captions, **TAKING)


@pytest.fixture
def batch(world):
    """Unit vectors of images and captions, and a function that gives a batch of both with rows."""
    generator = torch.Generator().manual_seed(0)
    vectors = [F.normalize(torch.randn(rows, 5, generator=generator), dim=1) for rows in (15, 30)]

    def make(groups, step=0, negatives=None):
        companions = None if groups == 3 and negatives is None else "omit"
        sampler = aoq.BatchSampler(world.table, batch_size=8, companions=companions, negatives=negatives)
        rows = torch.from_numpy(sampler.batch(0, step))[: 8 * groups]
        group = torch.arange(groups).repeat_interleave(8)
        return vectors[0][rows[:, 0]], vectors[1][rows[:, 1]], torch.column_stack([rows, group])

    return make


def similarities(images, captions, rows, groups):
    """The definition, a pair at a time."""
    matrix = torch.stack([torch.stack([image @ caption for caption in captions[:8]]) for image in images[:8]])
    is_positive = torch.tensor([[t // EACH == i for t in rows[:8, 1]] for i in rows[:8, 0]])
    offline = None
    if groups > 1:
        offline = aoq.offline_similarities(images, captions, rows[:, 0], companions=groups == 3)
    return aoq.Similarities(matrix, is_positive, offline)


LOSSES = [
    (OfflineClipLoss, {}, 2, lambda pairs: aoq.info_nce(pairs, temperature=1 / 7).total / 16),
    (OfflineClipLoss, {"negatives": None}, 1, lambda pairs: aoq.info_nce(pairs, temperature=1 / 7).total / 16),
    (
        OfflineClipLoss,
        {"adaptive": True, "hardness_weight": 2.0, **ADAPTIVE},
        2,
        lambda pairs: aoq.adap_info_nce(pairs, temperature=1 / 7, hardness_weight=2.0, **ADAPTIVE).total / 16,
    ),
    (OfflineSigLipLoss, {}, 2, lambda pairs: aoq.sigmoid_loss(pairs, temperature=1 / 7, bias=-2.0).total / 8),
    (OfflineQuintupletLoss, {}, 3, lambda pairs: aoq.adap_off_quin(pairs, **MARGINS, **ADAPTIVE).total / 8),
    (OfflineQuintupletLoss, {"adaptive": False}, 3, lambda pairs: aoq.off_quin(pairs, **MARGINS).total / 8),
]


@pytest.mark.parametrize(("kind", "options", "groups", "expected"), LOSSES)
def test_losses_are_ours_on_the_same_similarities(world, batch, kind, options, groups, expected):
    images, captions, rows = batch(groups)
    assert len(rows[:8, 0].unique()) < 8  # captions of one image meet
    loss = kind(world.table, **options)
    found = loss(images, captions, SCALE, BIAS, rows, output_dict=True)
    torch.testing.assert_close(sum(found.values()), expected(similarities(images, captions, rows, groups)))
    torch.testing.assert_close(loss(images, captions, SCALE, BIAS, rows), sum(found.values()))


@pytest.mark.parametrize("count", [1, 2])
def test_several_negatives_are_candidates_for_the_whole_batch(world, batch, count):
    images, captions, rows = batch(1 + count, negatives=count)
    sampler = aoq.BatchSampler(world.table, batch_size=8, companions="omit", negatives=count)
    offline = aoq.offline_similarities(images, captions, excluded=sampler.excluded(rows[:, :2]))
    pairs = replace(similarities(images, captions, rows, 1), offline=offline)
    found = OfflineClipLoss(world.table, negatives=count)(images, captions, SCALE, BIAS, rows)
    torch.testing.assert_close(found, aoq.info_nce(pairs, temperature=1 / 7).total / 16)
    found = OfflineSigLipLoss(world.table, negatives=count)(images, captions, SCALE, BIAS, rows)
    torch.testing.assert_close(found, aoq.sigmoid_loss(pairs, temperature=1 / 7, bias=-2.0).total / 8)


class BatchLoss(nn.Module):
    """The interface of open_clip's losses."""

    def forward(self, image_features, text_features, logit_scale, output_dict=False):
        total = logit_scale * (image_features @ text_features.T).sum()
        return {"contrastive_loss": total} if output_dict else total


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_teachers_score_pairs_by_the_rows_of_the_table(world, batch, teachers, groups):
    """In any order of the batch, and of the vectors if their ids are given."""
    base = {1: BatchLoss(), 2: OfflineClipLoss(world.table), 3: OfflineQuintupletLoss(world.table)}[groups]
    parts, order = batch(groups), torch.randperm(15, generator=torch.Generator().manual_seed(2))
    mixed = torch.cat([order[order < 8] + 8 * group for group in range(groups)])
    names = ("image_features", "text_features", "rows")
    outputs = {name: part[mixed] for name, part in zip(names, parts, strict=True)} | {"logit_scale": SCALE}
    images, captions, rows = parts
    expected = distillation(images, captions, rows[:8, :2].tolist(), teachers)
    table, moved = replace(world.table, ids={"images": world.ids}), [(one[order], two.numpy()) for one, two in teachers]
    loss = DistilledLoss(base, table, moved, weight=0.5, image_ids=[world.ids[row] for row in order])
    found = loss(**outputs, output_dict=True)
    assert found.pop("distillation_loss").item() == pytest.approx(0.5 * expected, rel=1e-4)
    if groups == 1:
        outputs.pop("rows")
    torch.testing.assert_close(found, base(**outputs, output_dict=True))


def test_teachers_that_do_not_fit_are_refused(world, batch, teachers):
    (images, captions), _ = teachers
    for wrong, message in (([], "teachers is empty"), ([(images[1:], captions)], "14 images are given for 15 rows")):
        with pytest.raises(ValueError, match=message):
            DistilledLoss(BatchLoss(), world.table, wrong)
    features, _, rows = batch(2)
    with pytest.raises(ValueError, match=r"BatchLoss takes 1 equal groups .*\[8, 8\]; .*negatives=None"):
        DistilledLoss(BatchLoss(), world.table, teachers)(image_features=features, text_features=features, rows=rows)


def test_rows_may_stand_in_any_order_of_parts(world, batch):
    """Processes and accumulated batches leave whole batches, one after another."""
    images, captions, rows = batch(2)
    parts = [torch.cat([torch.arange(start, start + 4), torch.arange(start + 8, start + 12)]) for start in (4, 0)]
    mixed, loss = torch.cat(parts), OfflineClipLoss(world.table)
    expected = loss(images, captions, SCALE, rows=rows)
    torch.testing.assert_close(loss(images[mixed], captions[mixed], SCALE, rows=rows[mixed]), expected)


def test_images_that_share_a_caption_are_no_negatives(world, batch, monkeypatch):
    """True pairs are the table's, of which a caption may have several; they are looked up a few rows at a time."""
    monkeypatch.setattr(losses, "ROWS_LOOKED_UP", 3)
    images, captions, rows = batch(1)
    first, second = rows[0], next(row for row in rows if row[0] != rows[0, 0])
    shared = np.vstack([world.table.positives, [[first[0], second[1]]]]).astype(np.int32)
    pairs = similarities(images, captions, rows, 1)
    is_shared = (rows[:, 0, None] == first[0]) & (rows[None, :, 1] == second[1])
    pairs = replace(pairs, is_positive=pairs.is_positive | is_shared)
    loss = OfflineClipLoss(replace(world.table, positives=shared), negatives=None)
    expected = aoq.info_nce(pairs, temperature=1 / 7).total / 16
    torch.testing.assert_close(loss(images, captions, SCALE, rows=rows), expected)


def test_pairs_that_a_screen_makes_positives_are_no_negatives(world, batch):
    _, _, rows = batch(1)
    image = int(rows[0, 0])
    rows[1, 1] = listed = int(world.table.i2t.negative_ids[image, 0])
    screened = world.table.screen(positives=np.array([[image, listed]], np.int32), suspected="positive")
    found = OfflineClipLoss(screened, negatives=None)._are_true(rows)
    true = {*map(tuple, world.table.positives.tolist()), (image, listed)}
    assert found.tolist() == [[(i, t) in true for t in rows[:, 1].tolist()] for i in rows[:, 0].tolist()]


@pytest.mark.slow
def test_two_processes_have_the_loss_and_gradient_of_one(tmp_path):
    script, found = Path(__file__).parent / "two_losses.py", []
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for command in ([sys.executable], launch):
        ended = subprocess.run([*command, str(script)], capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads(ended.stdout))
    refused = found[1].pop("refused")
    others = ["table", "texts or pictures", "texts or pictures", "options", "table"]
    assert [said.partition(" from the first in its ")[2].partition(";")[0] for said in refused] == others
    for name, numbers in found[0].items():
        assert max(map(abs, numbers[1:-2])) > 1e-3, name
        assert found[1][name] == pytest.approx(numbers, rel=1e-4, abs=1e-6), name


class Tiny(nn.Module):
    """The interface of open_clip's models."""

    context_length = LENGTH

    def __init__(self, output_dict=True):
        super().__init__()
        self.output_dict, self.seen = output_dict, None

    def forward(self, image=None, text=None):
        self.seen = text
        named = {"image_features": image, "text_features": text}
        return named if self.output_dict else tuple(named.values())


@pytest.mark.parametrize("by_name", [False, True])
def test_a_model_returns_the_rows_and_sees_tokens_alone(data, by_name):
    (images, texts), model = next(iter(data.loader(5).dataloader)), carry_rows(Tiny())
    found = model(image=images, text=texts) if by_name else model(images, texts)
    assert torch.equal(found["rows"], texts[:, LENGTH:])
    assert torch.equal(model.seen, texts[:, :LENGTH])
    again = model(images, model.seen)
    assert again.keys() == {"image_features", "text_features"}
    assert model(images)["text_features"] is None
    assert not model.state_dict()


def test_a_batch_has_the_pictures_tokens_and_rows_of_its_draw(data, world):
    for negatives, groups in ((None, 1), ("offline", 2), ("quintuplet", 3), (3, 4)):
        train = data.loader(5, negatives=negatives, seed=3)
        options = {3: {}, 4: {"companions": "omit", "negatives": 3}}.get(groups, {"companions": "omit"})
        expected = aoq.BatchSampler(world.table, batch_size=5, seed=3, **options)
        assert len(train.dataloader) == train.dataloader.num_batches == 6
        assert train.dataloader.num_samples == 30 * groups
        for step, (images, texts) in enumerate(train.dataloader):
            rows = expected.batch(0, step)[: 5 * groups]
            assert texts[:, LENGTH:-1].tolist() == rows.tolist()
            assert texts[:, -1].tolist() == np.repeat(np.arange(groups), 5).tolist()
            assert images[:, 0, 0, 0].tolist() == rows[:, 0].tolist()
            assert texts[:, 1:3].tolist() == [[c // EACH, c % EACH] for c in rows[:, 1]]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batches", [None, "mined"])
def test_an_epoch_has_each_pair_once_and_is_set(data, batches, workers):
    train = data.loader(6, batches=batches, workers=workers, **({"community": 3} if batches else {}))

    def epoch(number):
        train.set_epoch(number)
        return torch.cat([texts[texts[:, -1] == 0, LENGTH:-1] for _, texts in train.dataloader]).tolist()

    first, second = epoch(0), epoch(1)
    assert sorted(caption for _, caption in first) == sorted(caption for _, caption in second) == [*range(30)]
    assert first != second
    assert epoch(0) == first


def test_a_prepared_folder_is_read_as_it_was(demo):
    split = open_split(demo.folder, "train")
    given = {"preprocess": np.array, "tokenizer": lambda texts: torch.tensor([[split.captions.index(texts[0])]])}
    data = TableData.of_folder(demo.table, demo.folder, **given)
    photographs = open_photographs(demo.folder, "train", split.image_count)
    for image, caption in demo.table.positives.tolist():
        picture, (text,), rows = data[image, caption]
        assert np.array_equal(picture, np.array(decode(photographs.read(image)).image))
        assert split.captions[text] == split.captions[caption]
        assert rows.tolist() == [image, caption, 0]


def test_rows_are_found_by_id(world, data):
    """The pictures in another order than the table."""
    order = np.random.default_rng(0).permutation(15)
    paths, ids = ([values[row] for row in order] for values in (world.pictures, world.ids))
    table = replace(world.table, ids={"images": world.ids})
    moved = TableData(table, paths, world.captions, image_ids=ids, **TAKING)
    for pair in world.table.positives:
        assert all(map(torch.equal, moved[pair], data[pair]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"images": range(14)}, "14 images are given for 15 rows"),
        ({"caption_ids": ["a"] * 30}, "the captions have ids, but the table keeps none"),
        ({"image_ids": ["a"]}, "1 image_ids name 15 images; give one each"),
        ({"image_ids": list("abcdefghijklmno")}, "15 of the table's images are not among the ids, .* 'photo_0'"),
    ],
)
def test_other_data_are_refused(world, wrong, message):
    with pytest.raises(ValueError, match=message):
        TableData(replace(world.table, ids={"images": world.ids}), **WHOLE | wrong)


def test_a_picture_that_cannot_be_read_is_named(world):
    data = TableData(world.table, [str(world.folder / "captions.txt")] * 15, world.captions, **TAKING)
    with pytest.raises(ValueError, match=r"captions.txt: is not JPEG.*; replace it"):
        data[0, 0]
    data = TableData(world.table, ["nowhere.png"] * 15, world.captions, **TAKING)
    with pytest.raises(ValueError, match=r"nowhere.png: .*No such file"):
        data[0, 0]


def test_a_loss_says_what_a_batch_lacks(world, batch):
    images, captions, rows = batch(2)
    with pytest.raises(ValueError, match="the batch carries no rows"):
        OfflineClipLoss(world.table)(images, captions, SCALE)
    with pytest.raises(ValueError, match=r"takes 3 equal groups of pairs, but the batch has \[8, 8\]; .*quintup"):
        OfflineQuintupletLoss(world.table)(images, captions, SCALE, rows=rows)
    with pytest.raises(ValueError, match=r"but the batch has \[8, 7\]"):
        OfflineClipLoss(world.table)(images[:-1], captions[:-1], SCALE, rows=rows[:-1])
    with pytest.raises(ValueError, match="does not say which pairs are true"):
        OfflineClipLoss(replace(world.table, positives=None))


def test_a_model_without_what_rows_need_is_refused(data):
    with pytest.raises(ValueError, match="Linear has no context_length"):
        carry_rows(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="make it with output_dict=True"):
        carry_rows(Tiny(output_dict=False))(*next(iter(data.loader(5).dataloader)))


def test_negclips_file_is_trained_on(data, export):
    """Training on the file that `aoq export` writes sees the same pictures, captions and negatives."""
    table, images, captions = read_negclip(export("negclip", None, *PICTURES) / "train.tsv")
    ours = TableData(table, images, captions, **TAKING).loader(10, seed=1)
    theirs = data.loader(10, seed=1)
    for one, other in zip(ours.dataloader, theirs.dataloader, strict=True):
        assert all(map(torch.equal, one, other))


def test_one_set_is_refused():
    table = aoq.hard_negatives(queries=np.eye(4), positives=np.array([[0, 1]]), h=2)
    with pytest.raises(ValueError, match="the table has one set"):
        TableData(table, **WHOLE)


def test_the_temperature_is_the_models(world, batch):
    """The model's temperature gets a gradient; a loss that does not use it leaves that gradient at zero."""
    scale = torch.tensor([math.log(7.0)], requires_grad=True)
    for kind, groups, is_used in ((OfflineClipLoss, 2, True), (OfflineQuintupletLoss, 3, False)):
        scale.grad = None
        images, captions, rows = batch(groups)
        kind(world.table)(images, captions, scale.exp(), rows=rows).backward()
        assert bool(scale.grad.abs().sum() > 0) == is_used
