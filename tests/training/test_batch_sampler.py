"""Batches for any trainer: those of our own loop, the same on every number of processes, and resumable anywhere."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from aoq.pipeline.config.losses import AdaptiveLoss
from aoq.pipeline.data.batches import epoch_order, step_rng, steps_per_epoch
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.losses.similarities import offline_similarities
from aoq.pipeline.mining.hard_negatives import hard_negatives
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.table import NegativeTable
from aoq.pipeline.training.batch_sampler import BatchSampler
from aoq.pipeline.training.batches import draw_batch, offline_draws
from aoq.pipeline.training.drawable import Drawable
from aoq.pipeline.training.sampler import Sampler

IMAGES, EACH = 16, 3
PAIRS = IMAGES * EACH
IMAGE_OF = np.repeat(np.arange(IMAGES, dtype=np.int32), EACH)
TRUE = np.stack([IMAGE_OF, np.arange(PAIRS)], axis=1).astype(np.int32)


def table_of(i2t, t2i):
    def lists(ids):
        return NegativeLists(ids.astype(np.int32), np.zeros(ids.shape, np.float32), np.zeros(len(ids), np.float32))

    return NegativeTable(lists(i2t), lists(t2i), manifest={})


@pytest.fixture
def table():
    rng = np.random.default_rng(1)
    i2t = np.stack([rng.permutation(np.flatnonzero(m != IMAGE_OF))[:8] for m in range(IMAGES)])
    return table_of(i2t, np.stack([rng.permutation(np.delete(np.arange(IMAGES), m))[:4] for m in IMAGE_OF]))


def batches_of(sampler):
    return [batch.tolist() for batch in sampler]


@pytest.mark.parametrize(
    ("companions", "loss"),
    [
        (None, AdaptiveLoss(name="adapoffquin")),
        ("anchors", AdaptiveLoss(name="adapoffquin", companions="anchors")),
        ("omit", AdaptiveLoss(name="adapofftri")),
    ],
)
def test_batches_are_those_of_our_own_training(table, pairs, companions, loss):
    """Step by step what `draw_batch` gives the training loop: groups of images and captions."""
    found = BatchSampler(table, image_of=IMAGE_OF, batch_size=10, seed=5, companions=companions)
    assert len(found) == steps_per_epoch(PAIRS, 10) == 5
    sampler = Sampler(Drawable(table.i2t.negative_ids), Drawable(table.t2i.negative_ids), IMAGE_OF)
    offline = offline_draws(loss)
    for epoch in range(3):
        order = epoch_order(PAIRS, seed=5, epoch=epoch)
        for step, batch in enumerate(found):
            rng = step_rng(seed=5, epoch=epoch, step=step)
            drawn = draw_batch(pairs, sampler, offline, order[step * 10 :][:10], rng, epoch)
            np.testing.assert_array_equal(batch, drawn.groups.reshape(-1, 2))
        assert step == 4


def test_every_pair_is_an_anchor_once_an_epoch_in_another_order(table):
    sampler = BatchSampler(table, image_of=IMAGE_OF, batch_size=10)
    epochs = [[batch[: len(batch) // 3] for batch in sampler] for _ in range(2)]
    for batches in epochs:
        assert [len(anchors) for anchors in batches] == [10, 10, 10, 10, 8]
        assert sorted(np.concatenate(batches)[:, 1]) == list(range(PAIRS))
    assert epochs[0][0].tolist() != epochs[1][0].tolist()
    assert len(BatchSampler(table, image_of=IMAGE_OF, batch_size=10, drop_last=True)) == 4


@pytest.mark.parametrize("companions", [None, "anchors"])
@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 9), (3, 6)])
def test_processes_share_the_batches_of_one(table, companions, world_size, batch_size):
    """Equal in number and size; together they are one process's batch, less what a last one does not fill evenly."""
    shared = {"seed": 2, "companions": companions}
    whole = list(BatchSampler(table, image_of=IMAGE_OF, batch_size=batch_size * world_size, **shared))
    parts = [
        list(BatchSampler(table, image_of=IMAGE_OF, batch_size=batch_size, rank=rank, world_size=world_size, **shared))
        for rank in range(world_size)
    ]
    assert len({len(batches) for batches in parts}) == 1
    steps = len(parts[0])
    assert steps in (len(whole), len(whole) - 1)
    for step in range(steps):
        assert len({part[step].shape for part in parts}) == 1
        groups = [np.concatenate(group) for group in zip(*(np.split(part[step], 3) for part in parts), strict=True)]
        for group, expected in zip(groups, np.split(whole[step], 3), strict=True):
            if len(group) < len(expected):
                assert step == len(whole) - 1 or len(expected) % world_size
            np.testing.assert_array_equal(group, expected[: len(group)])
            assert len(expected) - len(group) < world_size


def test_a_last_batch_without_negatives_is_left_out(table):
    assert len(BatchSampler(table, image_of=IMAGE_OF, batch_size=47)) == 1
    assert len(BatchSampler(table, image_of=IMAGE_OF, batch_size=46)) == 2
    assert len(BatchSampler(table, image_of=IMAGE_OF, batch_size=15, world_size=3)) == 1  # three pairs left: one each
    assert len(BatchSampler(table, image_of=IMAGE_OF, batch_size=14, world_size=3)) == 2


def test_epochs_follow_each_other_or_are_set(table):
    one, other = (BatchSampler(table, image_of=IMAGE_OF, batch_size=10, seed=7) for _ in range(2))
    epochs = [batches_of(one) for _ in range(3)]
    assert len({str(batches) for batches in epochs}) == 3
    for epoch in (2, 0, 1):
        other.set_epoch(epoch)
        assert batches_of(other) == epochs[epoch]
        assert [other.batch(epoch, step).tolist() for step in range(len(other))] == epochs[epoch]
    next(iter(one))  # an epoch that is broken off is over
    other.set_epoch(4)
    assert batches_of(one) == batches_of(other)


@pytest.mark.parametrize("stop", [0, 3, 5])
@pytest.mark.parametrize("sets_epochs", [False, True])
def test_stopped_anywhere_the_rest_is_the_same(table, stop, sets_epochs):
    def sampler(**shared):
        return BatchSampler(table, image_of=IMAGE_OF, seed=3, **{"batch_size": 10, **shared})

    def run(sampler, epoch):
        for number in range(epoch, 2):
            if sets_epochs:
                sampler.set_epoch(number)
            yield from (batch.tolist() for batch in sampler)

    first, second, resumed = sampler(), sampler(batch_size=5, world_size=2), sampler()  # as many pairs a step
    running = run(first, 0)
    before = [next(running) for _ in range(stop)]
    state = first.state_dict()
    second.load_state_dict(state)
    resumed.load_state_dict(second.state_dict())
    assert before + list(run(resumed, state["epoch"])) == list(run(sampler(), 0))


def test_a_state_of_other_batches_is_refused(table):
    state = BatchSampler(table, image_of=IMAGE_OF, batch_size=10).state_dict()
    with pytest.raises(ValueError, match=r"other batches: {'seed': 0, 'pairs_per_step': 10}, here {'seed': 1"):
        BatchSampler(table, image_of=IMAGE_OF, batch_size=12, seed=1).load_state_dict(state)
    mined = BatchSampler(table, image_of=IMAGE_OF, batch_size=10, batches="mined").state_dict()
    for others in ({}, {"batches": "mined", "community": 4}, {"batches": "mined", "batch_ranks": (0, 2)}):
        with pytest.raises(ValueError, match="belongs to other batches"):
            BatchSampler(table, image_of=IMAGE_OF, batch_size=10, **others).load_state_dict(mined)


class Rows(Dataset):
    """A user's dataset: a pair by its rows, or a batch of pairs by theirs."""

    def __getitem__(self, row):
        image, caption = row.T
        return torch.as_tensor(image), torch.as_tensor(caption) * 10


@pytest.mark.parametrize("how", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_data_loader_takes_it(table, how):
    sampler = BatchSampler(table, image_of=IMAGE_OF, batch_size=10)
    loader = DataLoader(Rows(), batch_sampler=sampler, **how)
    assert len(loader) == 5
    for epoch in range(2):
        expected = [sampler.batch(epoch, step).T.tolist() for step in range(5)]
        for (images, captions), (i, t) in zip(loader, expected, strict=True):
            assert images.tolist() == i
            assert captions.tolist() == [10 * caption for caption in t]
    whole = DataLoader(Rows(), sampler=sampler, batch_size=None)  # asks for whole batches
    assert [images.tolist() for images, _ in whole] == [sampler.batch(2, step)[:, 0].tolist() for step in range(5)]


def test_workers_run_ahead_and_a_state_can_say_where_the_training_stands(table):
    sampler = BatchSampler(table, image_of=IMAGE_OF, batch_size=6)
    loader = iter(DataLoader(Rows(), batch_sampler=sampler, num_workers=2, prefetch_factor=2))
    seen = [next(loader)[0].tolist() for _ in range(2)]
    assert sampler.state_dict()["step"] > 2
    resumed = BatchSampler(table, image_of=IMAGE_OF, batch_size=6)
    resumed.load_state_dict(sampler.state_dict(step=2))
    rest = [batch[:, 0].tolist() for batch in resumed]
    assert seen + rest == [sampler.batch(0, step)[:, 0].tolist() for step in range(8)]
    assert [images.tolist() for images, _ in loader] == rest


def test_heads_and_weights_say_what_is_drawn(table):
    i2t, t2i = table.i2t.negative_ids, table.t2i.negative_ids
    for batch in BatchSampler(table, image_of=IMAGE_OF, batch_size=10, h_captions=2, h_images=1, resample=False):
        anchors, offline, _ = np.split(batch, 3)
        assert all(t_off in i2t[i, :2] for i, t_off in zip(anchors[:, 0], offline[:, 1], strict=True))
        np.testing.assert_array_equal(offline[:, 0], t2i[anchors[:, 1], 0])
    weights = np.zeros(i2t.shape)
    weights[:, 3] = 0.5
    for batch in BatchSampler(table, image_of=IMAGE_OF, batch_size=10, i2t_weights=weights):
        anchors, offline, _ = np.split(batch, 3)
        np.testing.assert_array_equal(offline[:, 1], i2t[anchors[:, 0], 3])


def test_what_cannot_be_drawn_is_refused(table):
    weights = np.ones(table.i2t.negative_ids.shape)
    weights[4] = 0
    for given, message in (
        ({"batch_size": 1}, "batch_size = 1 leaves no negative in a batch; give at least 2"),
        ({"batch_size": 5, "companions": "anchors"}, "give at least 6"),
        ({"batch_size": 10, "rank": 2, "world_size": 2}, "rank = 2 is not one of the 2 processes"),
        ({"batch_size": 10, "world_size": 40}, "48 pairs fill no batch of 10 in each of 40 processes"),
        ({"batch_size": 10, "h_captions": 9}, "h_captions = 9, but the table keeps 8"),
        ({"batch_size": 10, "h_images": 0}, "h_images = 0, but the table keeps 4 .* give 1 to 4"),
        ({"batch_size": 10, "h_captions": -1}, "h_captions = -1, but the table keeps 8 .* give 1 to 8"),
        ({"batch_size": 10, "strategy": "hard"}, "there is no strategy 'hard'; known are 'uniform', 'coupled'"),
        ({"batch_size": 10, "windows": ()}, "`windows` is empty"),
        ({"batch_size": 10, "windows": [(0.0, 1.2)]}, r"a window is \[start, stop\] .*; got \[0.0, 1.2\]"),
        ({"batch_size": 10, "windows": [(0.0, 1.0), (0.6, 0.2)]}, r"a window is .*; got \[0.6, 0.2\]"),
        ({"batch_size": 10, "t2i_weights": np.full((48, 4), np.nan)}, "t2i_weights must be finite and not below 0"),
        ({"batch_size": 10, "i2t_weights": weights - 2}, "i2t_weights must be finite and not below 0"),
        ({"batch_size": 10, "i2t_weights": weights}, "1 lists of i2t hold nothing to draw, the first that of row 4;"),
        ({"batch_size": 9, "companions": "anchor"}, "companions is 'anchor'"),
        ({"batch_size": 8, "batches": "hard"}, 'it is "mined" or None'),
        ({"batch_size": 8, "batch_ranks": (0, 3)}, "belong to batches"),
        ({"batch_size": 8, "offline": False}, "leaves mined batches alone"),
        ({"batch_size": 8, "offline": False, "batches": "mined", "companions": "omit"}, "leaves mined batches alone"),
        ({"batch_size": 10, "i2t_weights": weights[:, :2]}, r"i2t_weights are \(16, 2\), and the lists .* \(16, 8\)"),
    ):
        with pytest.raises(ValueError, match=message):
            BatchSampler(table, image_of=IMAGE_OF, **given)
    with pytest.raises(ValueError, match="the list of image 3 has caption 0 as a negative, and they are a true pair"):
        BatchSampler(table_of(np.zeros((IMAGES, 1)), table.t2i.negative_ids), batch_size=10, image_of=IMAGE_OF * 0 + 3)


def test_derived_pairs_that_are_true_pairs_are_no_negatives():
    images, captions = F.normalize(torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0)), dim=2)
    offline = offline_similarities(images, captions, torch.tensor([0, 1, 5, 6, 5, 7]))
    assert (offline.offline_pair == NO_NEGATIVE).tolist() == [True, False]
    assert (offline.companion_pair == NO_NEGATIVE).tolist() == [True, False]
    with pytest.raises(ValueError, match="4 images and 4 captions are not 3 groups of pairs"):
        offline_similarities(images[:4], captions[:4])
    found = offline_similarities(images, captions, companions=False)
    torch.testing.assert_close(found.image_to_caption, (images[:3] * captions[3:]).sum(1))
    torch.testing.assert_close(found.caption_to_image, (images[3:] * captions[:3]).sum(1))
    assert found.offline_pair is found.companion_pair is None


def test_the_tables_own_pairs_are_the_default(table):
    given = BatchSampler(table, image_of=torch.from_numpy(np.asarray(IMAGE_OF)), batch_size=10, seed=2)
    own = BatchSampler(replace(table, positives=TRUE[::-1]), batch_size=10, seed=2)
    for batch, same in zip(given, own, strict=True):
        np.testing.assert_array_equal(batch, same)


def test_pairs_are_needed_and_a_caption_of_no_image_is_no_offline_negative(table):
    with pytest.raises(ValueError, match="the table does not say which pairs are true; give image_of"):
        BatchSampler(replace(table, positives=None), batch_size=10)
    alone = replace(table, positives=np.delete(TRUE, 4, axis=0))
    with pytest.raises(ValueError, match=r"1 captions have no image, the first is 4: .* a weight of 0, or set"):
        BatchSampler(alone, batch_size=10)
    sampler = BatchSampler(alone, batch_size=10, i2t_weights=(table.i2t.negative_ids != 4).astype(float))
    assert not any((batch[:, 1] == 4).any() for batch in sampler)


def corpus(seed, *, one_set):
    """A table of pairs many-to-many, every row in one at least; and the pairs."""
    rng = np.random.default_rng(seed)
    rows = 9 if one_set else 12
    pairs = np.concatenate([np.stack([np.arange(rows) % 9, np.arange(rows)], axis=1), rng.integers(0, 9, (5, 2))])
    pairs[:rows, 0] = (pairs[:rows, 0] + one_set) % 9
    vectors = rng.normal(size=(9, 4)), rng.normal(size=(rows, 4))
    documents = {} if one_set else {"documents": vectors[1]}
    table = hard_negatives(queries=vectors[0], positives=pairs, h=2, **documents)
    return table, {tuple(pair) for pair in table.positives.tolist()}


@pytest.mark.parametrize("one_set", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_many_to_many_pairs_are_drawn_by_the_definition(seed, one_set):
    """Every pair once an epoch, negatives from the anchors' lists, companions their own, derived pairs untrue."""
    table, pairs = corpus(seed, one_set=one_set)
    itself = {(row, row) for row in range(9)} if one_set else set()
    size = next(size for size in (5, 4, 6, 7) if len(pairs) % size != 1)  # a last batch of one has no negative
    sampler = BatchSampler(table, batch_size=size, seed=seed)
    anchors, collisions, drawn = [], 0, 0
    for batch in sampler:
        groups = np.split(batch, 3)
        anchors += map(tuple, groups[0].tolist())
        for (i, t), (i_off, t_off), (i_own, t_own) in zip(*(group.tolist() for group in groups), strict=True):
            assert t_off in table.i2t.negative_ids[i]
            assert i_off in table.t2i.negative_ids[t]
            assert {(i_own, t_off), (i_off, t_own)} <= pairs
            collisions += bool({(i_off, t_off), (i_own, t_own)} & (pairs | itself))
            drawn += 1
        expected = [[(i, t) in pairs | itself for t in batch[:, 1]] for i in batch[:, 0]]
        np.testing.assert_array_equal(sampler.is_positive(batch), expected)
    assert sorted(anchors) == sorted(pairs)
    assert collisions < drawn


def test_documents_of_nobody_are_drawn_where_companions_are_omitted():
    """Queries with a document each, among many documents that are nobody's."""
    rng = np.random.default_rng(0)
    pairs = np.stack([np.arange(6), np.arange(0, 12, 2)], axis=1)
    table = hard_negatives(queries=rng.normal(size=(6, 4)), documents=rng.normal(size=(30, 4)), positives=pairs, h=3)
    with pytest.raises(ValueError, match=r'24 captions have no image, the first is 1: .* or set companions="omit"'):
        BatchSampler(table, batch_size=3)
    anchors, drawn = [], set()
    for world_size in (1, 3):
        for rank in range(world_size):
            share = {"batch_size": 6 // world_size, "rank": rank, "world_size": world_size}
            for batch in BatchSampler(table, companions="omit", **share):
                own, offline = np.split(batch, 2)
                anchors += own.tolist()
                drawn |= {*offline[:, 1].tolist()}
                for (i, t), (i_off, t_off) in zip(own.tolist(), offline.tolist(), strict=True):
                    assert t_off in table.i2t.negative_ids[i]
                    assert i_off in table.t2i.negative_ids[t]
    assert sorted(anchors) == sorted([*pairs.tolist(), *pairs.tolist()])
    assert drawn - {*pairs[:, 1].tolist()}


def test_what_a_screen_flags_is_not_drawn_and_soft_margins_are_the_losses(table):
    soft = replace(table, positives=TRUE).screen(mutual_rank=1, suspected="soft_margin")
    with pytest.raises(ValueError, match='do not carry them; screen with suspected = "drop"'):
        BatchSampler(soft, batch_size=10)
    screened = replace(table, positives=TRUE).screen(range_min=1)
    flagged = table.i2t.negative_ids[:, 0]
    for batch in BatchSampler(screened, batch_size=10, resample=False):
        anchors, offline, _ = batch.reshape(3, -1, 2)
        assert (offline[:, 1] != flagged[anchors[:, 0]]).all()


@pytest.mark.parametrize("image", [-2, 2**32 + 1])
def test_a_pair_beyond_the_table_is_named(table, image):
    moved = IMAGE_OF.astype(np.int64)
    moved[7] = image
    with pytest.raises(ValueError, match=f"caption 7 is paired with image {image}, .* numbered 0 to {IMAGES - 1}"):
        BatchSampler(table, image_of=moved, batch_size=10)


def test_mined_batches_hold_each_others_hard_negatives():
    """Only a batch's anchors are mined; negatives and companions are drawn as usual. Images are in four clusters."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(4, 6))[np.arange(IMAGES) % 4] + 0.2 * rng.normal(size=(IMAGES, 6))
    table = hard_negatives(images, images[IMAGE_OF] + 0.2 * rng.normal(size=(PAIRS, 6)), IMAGE_OF, h=(8, 3))
    mined = BatchSampler(table, image_of=IMAGE_OF, batch_size=8, batches="mined", community=4)
    plain = BatchSampler(table, image_of=IMAGE_OF, batch_size=8)

    def listed(sampler):
        found = 0
        for batch in sampler:
            images, captions = batch[:8].T
            found += np.isin(table.i2t.negative_ids[images], captions).sum()
        return found

    assert listed(mined) > 1.3 * listed(plain)
    anchors = np.concatenate([batch[: len(batch) // 3] for batch in mined])
    assert sorted(anchors[:, 1].tolist()) == list(range(PAIRS))


def test_each_process_has_a_mined_batch_of_its_own_with_negatives_or_without(table):
    mined = {"image_of": IMAGE_OF, "batch_size": 8, "batches": "mined", "community": 4}
    whole = BatchSampler(table, **mined)
    for rank in (0, 1):
        own = BatchSampler(table, **mined, rank=rank, world_size=2)
        alone = BatchSampler(table, **mined, rank=rank, world_size=2, offline=False)
        assert len(own) == len(alone) == PAIRS // 16
        for step in range(len(own)):
            anchors = whole.batch(0, 2 * step + rank)[:8]
            assert (own.batch(0, step)[:8] == anchors).all()
            assert (alone.batch(0, step) == anchors).all()


def test_a_mined_sampler_can_be_copied_and_pickled(table):
    """Trainers that save their arguments do so."""
    sampler = BatchSampler(table, image_of=IMAGE_OF, batch_size=8, batches="mined", strategy="normal")
    for again in (deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert again.batch(1, 0).tolist() == sampler.batch(1, 0).tolist()
