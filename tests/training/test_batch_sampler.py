"""Batches for any trainer: those of our own loop, the same on every number of processes, and resumable anywhere."""

from __future__ import annotations

import json
import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from aoq.pipeline.batches.lists import meeting_lists
from aoq.pipeline.batches.order import mined_order
from aoq.pipeline.config.losses import AdaptiveLoss
from aoq.pipeline.data.batches import epoch_order, step_rng, steps_per_epoch
from aoq.pipeline.losses.similarities import positive_pairs
from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.training.batch_sampler import BatchSampler
from aoq.pipeline.training.drawable import Drawable
from aoq.pipeline.training.sampler import Sampler
from tests.training.conftest import EACH, IMAGES, random_lists, table_of

PAIRS = IMAGES * EACH
IMAGE_OF = np.repeat(np.arange(IMAGES, dtype=np.int32), EACH)
TRUE = np.stack([IMAGE_OF, np.arange(PAIRS)], axis=1).astype(np.int32)


@pytest.fixture
def table():
    return table_of(*random_lists(IMAGE_OF)[:2])


@pytest.fixture
def make(table):
    def batches(**options):
        return BatchSampler(table, **{"image_of": IMAGE_OF, "batch_size": 10, **options})

    return batches


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
def test_batches_are_those_of_our_own_training(table, make, companions, loss):
    """Step by step what the sampler gives the training loop: groups of images and captions."""
    found = make(seed=5, companions=companions)
    assert len(found) == steps_per_epoch(PAIRS, 10) == 5
    assert len(make(drop_last=True)) == 4
    sampler = Sampler(Drawable(table.i2t.negative_ids), Drawable(table.t2i.negative_ids), IMAGE_OF)
    offline = loss.draws
    for epoch in range(3):
        order = epoch_order(PAIRS, seed=5, epoch=epoch)
        for step, batch in enumerate(found):
            rng = step_rng(seed=5, epoch=epoch, step=step)
            drawn = sampler.draw_for(offline, order[step * 10 :][:10], rng, epoch)
            np.testing.assert_array_equal(batch, drawn.groups.reshape(-1, 2))
        assert step == 4


@pytest.mark.parametrize("companions", [None, "anchors"])
@pytest.mark.parametrize(("world_size", "batch_size"), [(2, 9), (3, 6)])
def test_processes_share_the_batches_of_one(make, companions, world_size, batch_size):
    """Equal in number and size; together they are one process's batch, less what a last one does not fill evenly."""
    whole = list(make(batch_size=batch_size * world_size, companions=companions))
    share = {"batch_size": batch_size, "companions": companions, "world_size": world_size}
    parts = [list(make(rank=rank, **share)) for rank in range(world_size)]
    for step, batches in enumerate(zip(*parts, strict=True)):
        assert len({batch.shape for batch in batches}) == 1
        groups = np.concatenate([batch.reshape(3, -1, 2) for batch in batches], axis=1)
        expected = whole[step].reshape(3, -1, 2)
        np.testing.assert_array_equal(groups, expected[:, : groups.shape[1]])
        assert expected.shape[1] - groups.shape[1] < world_size
    assert step in (len(whole) - 1, len(whole) - 2)


@pytest.mark.parametrize(("batch_size", "world_size", "steps"), [(47, 1, 1), (46, 1, 2), (15, 3, 1), (14, 3, 2)])
def test_a_last_batch_without_negatives_is_left_out(make, batch_size, world_size, steps):
    """With 15 in each of three processes, three pairs are left: one each."""
    assert len(make(batch_size=batch_size, world_size=world_size)) == steps


def test_epochs_follow_each_other_or_are_set(make):
    one, other = make(seed=7), make(seed=7)
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
def test_stopped_anywhere_the_rest_is_the_same(make, stop, sets_epochs):
    def run(sampler, epoch):
        for number in range(epoch, 2):
            if sets_epochs:
                sampler.set_epoch(number)
            yield from (batch.tolist() for batch in sampler)

    first, second, resumed = make(), make(batch_size=5, world_size=2), make()  # as many pairs a step
    running = run(first, 0)
    before = [next(running) for _ in range(stop)]
    state = first.state_dict()
    second.load_state_dict(state)
    resumed.load_state_dict(second.state_dict())
    assert before + list(run(resumed, state["epoch"])) == list(run(make(), 0))


def test_a_state_of_other_batches_is_refused(make):
    with pytest.raises(ValueError, match=r"other batches: {'seed': 0, 'pairs_per_step': 10}, here {'seed': 1"):
        make(batch_size=12, seed=1).load_state_dict(make().state_dict())
    mined = make(batches="mined").state_dict()
    for others in ({}, {"batches": "mined", "community": 4}, {"batches": "mined", "batch_ranks": (0, 2)}):
        with pytest.raises(ValueError, match="belongs to other batches"):
            make(**others).load_state_dict(mined)


class Rows(Dataset):
    """A user's dataset: a pair by its rows, or a batch of pairs by theirs."""

    def __getitem__(self, row):
        image, caption = row.T
        return torch.as_tensor(image), torch.as_tensor(caption) * 10


@pytest.mark.parametrize("how", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_data_loader_takes_it(make, how):
    sampler = make()
    loader = DataLoader(Rows(), batch_sampler=sampler, **how)
    assert len(loader) == 5
    for epoch in range(2):
        expected = [(sampler.batch(epoch, step).T * [[1], [10]]).tolist() for step in range(5)]
        assert [[part.tolist() for part in batch] for batch in loader] == expected
    whole = DataLoader(Rows(), sampler=sampler, batch_size=None)  # asks for whole batches
    assert [images.tolist() for images, _ in whole] == [sampler.batch(2, step)[:, 0].tolist() for step in range(5)]


def test_workers_run_ahead_and_a_state_can_say_where_the_training_stands(make):
    sampler, resumed = make(batch_size=6), make(batch_size=6)
    loader = iter(DataLoader(Rows(), batch_sampler=sampler, num_workers=2, prefetch_factor=2))
    seen = [next(loader)[0].tolist() for _ in range(2)]
    assert sampler.state_dict()["step"] > 2
    resumed.load_state_dict(sampler.state_dict(step=2))
    rest = [batch[:, 0].tolist() for batch in resumed]
    assert seen + rest == [sampler.batch(0, step)[:, 0].tolist() for step in range(8)]
    assert [images.tolist() for images, _ in loader] == rest


def test_rows_and_numbers_of_any_kind_are_taken(make):
    one = make(seed=2, i2t_weights=torch.ones(IMAGES, 8))
    other = make(seed=np.int64(2), batch_size=torch.tensor(10), i2t_weights=np.ones((IMAGES, 8)))
    for sampler in (one, other):
        sampler.set_epoch(np.int64(3))
    assert json.dumps(one.state_dict(np.int64(1))) == json.dumps(other.state_dict(1))
    rows = torch.from_numpy(next(iter(one)))[:10]
    assert torch.equal(rows, torch.from_numpy(next(iter(other)))[:10])
    np.testing.assert_array_equal(one.draw_each(np.array([4, 7]), 1), other.draw_each(torch.tensor([4, 7]), 1))
    assert one.is_positive(rows).tolist() == positive_pairs(rows[:, 0].numpy(), mask_positives=True).tolist()


WEIGHTS = np.ones((IMAGES, 8))
WEIGHTS[4] = 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 1}, "batch_size = 1 leaves no negative in a batch; give at least 2"),
        ({"batch_size": 5, "companions": "anchors"}, "give at least 6"),
        ({"rank": 2, "world_size": 2}, "rank = 2 is not one of the 2 processes"),
        ({"world_size": 40}, "48 pairs cannot fill a batch of 10 in each of 40 processes"),
        ({"h_captions": 9}, "h_captions = 9, but the table keeps 8"),
        ({"h_images": 0}, "h_images = 0, but the table keeps 4 .* give 1 to 4"),
        ({"strategy": "hard"}, "there is no strategy 'hard'; known are 'uniform', 'coupled'"),
        ({"windows": ()}, "`windows` is empty"),
        ({"windows": [(0.0, 1.2)]}, r"a window is \[start, stop\] .*; got \[0.0, 1.2\]"),
        ({"windows": [(0.0, 1.0), (0.6, 0.2)]}, r"a window is .*; got \[0.6, 0.2\]"),
        ({"t2i_weights": np.full((48, 4), np.nan)}, "t2i_weights must be finite and not below 0"),
        ({"i2t_weights": WEIGHTS - 2}, "i2t_weights must be finite and not below 0"),
        ({"i2t_weights": WEIGHTS}, "1 lists of i2t have no negatives to draw, the first is row 4;"),
        ({"i2t_weights": WEIGHTS[:, :2]}, r"i2t_weights are \(16, 2\), but the lists .* \(16, 8\)"),
        ({"companions": "anchor"}, "companions is 'anchor'"),
        ({"batches": "hard"}, 'it must be "mined" or None'),
        ({"batch_ranks": (0, 3)}, "belong to batches"),
        ({"offline": False}, "draws only mined batches"),
        ({"offline": False, "batches": "mined", "companions": "omit"}, "draws only mined batches"),
        ({"image_of": IMAGE_OF.astype(np.int64) + 2**32}, "caption 0 is paired with image 4294967296, .* 0 to 15"),
    ],
)
def test_what_cannot_be_drawn_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_pairs_are_the_tables_own_and_a_caption_of_no_image_is_no_offline_negative(table, make):
    own = BatchSampler(replace(table, positives=TRUE[::-1]), batch_size=10)
    assert batches_of(own) == batches_of(make(image_of=torch.from_numpy(IMAGE_OF)))
    with pytest.raises(ValueError, match="the table does not say which pairs are true; give image_of"):
        BatchSampler(replace(table, positives=None), batch_size=10)
    alone = replace(table, positives=np.delete(TRUE, 4, axis=0))
    with pytest.raises(ValueError, match=r"1 captions have no image, the first is 4: .* a weight of 0, or set"):
        BatchSampler(alone, batch_size=10)
    sampler = BatchSampler(alone, batch_size=10, i2t_weights=(table.i2t.negative_ids != 4).astype(float))
    assert not any((batch[:, 1] == 4).any() for batch in sampler)
    screened = replace(table, positives=TRUE).screen(range_min=2)
    options = {"batch_size": 10, "companions": "omit", "i2t_weights": np.ones(table.i2t.negative_ids.shape)}
    hardest = {(image, caption) for image, row in enumerate(table.i2t.negative_ids) for caption in row[:2].tolist()}
    for anchors, drawn in (np.split(batch, 2) for batch in BatchSampler(screened, **options)):
        assert not {*zip(anchors[:, 0].tolist(), drawn[:, 1].tolist(), strict=True)} & hardest


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
    anchors, collisions = [], 0
    for batch in sampler:
        for (i, t), (i_off, t_off), (i_own, t_own) in batch.reshape(3, -1, 2).transpose(1, 0, 2).tolist():
            anchors.append((i, t))
            assert t_off in table.i2t.negative_ids[i]
            assert i_off in table.t2i.negative_ids[t]
            assert {(i_own, t_off), (i_off, t_own)} <= pairs
            collisions += bool({(i_off, t_off), (i_own, t_own)} & (pairs | itself))
        expected = [[(i, t) in pairs | itself for t in batch[:, 1]] for i in batch[:, 0]]
        np.testing.assert_array_equal(sampler.is_positive(batch), expected)
    assert sorted(anchors) == sorted(pairs)
    assert collisions < len(anchors)
    if not one_set:  # a match of one caption leaves the pairs of the others as they are
        matched = next(caption for caption in range(len(table.t2i)) if (0, caption) not in pairs)
        screened = table.screen(positives=np.array([[0, matched]], np.int32), suspected="positive")
        sampler = BatchSampler(screened, batch_size=size, seed=seed, companions="omit")
        drawn = [pair for batch in sampler for pair in map(tuple, np.split(batch, 2)[0].tolist())]
        assert {pair for pair in drawn if pair[1] == matched} <= pairs | {(0, matched)}
        assert sorted(pair for pair in drawn if pair[1] != matched) == sorted(p for p in pairs if p[1] != matched)


def test_documents_of_nobody_are_drawn_where_companions_are_omitted():
    """Queries with a document each, among many documents that are nobody's."""
    rng = np.random.default_rng(0)
    pairs = np.stack([np.arange(6), np.arange(0, 12, 2)], axis=1)
    table = hard_negatives(queries=rng.normal(size=(6, 4)), documents=rng.normal(size=(30, 4)), positives=pairs, h=3)
    with pytest.raises(ValueError, match=r'24 captions have no image, the first is 1: .* or set companions="omit"'):
        BatchSampler(table, batch_size=3)
    share = {"companions": "omit", "batch_size": 2, "world_size": 3}
    (batches,) = zip(*(BatchSampler(table, rank=rank, **share) for rank in range(3)), strict=True)
    anchors, offline = np.concatenate([batch.reshape(2, -1, 2) for batch in batches], axis=1)
    assert sorted(anchors.tolist()) == sorted(pairs.tolist())
    for (i, t), (i_off, t_off) in zip(anchors, offline, strict=True):
        assert t_off in table.i2t.negative_ids[i]
        assert i_off in table.t2i.negative_ids[t]
    assert {*offline[:, 1].tolist()} - {*pairs[:, 1].tolist()}


def test_what_a_screen_flags_is_not_drawn_and_soft_margins_are_the_losses(table):
    soft = replace(table, positives=TRUE).screen(mutual_rank=1, suspected="soft_margin")
    with pytest.raises(ValueError, match='do not carry them; screen with suspected = "drop"'):
        BatchSampler(soft, batch_size=10)
    screened = replace(table, positives=TRUE).screen(range_min=1)
    flagged = table.i2t.negative_ids[:, 0]
    for batch in BatchSampler(screened, batch_size=10, resample=False):
        anchors, offline, _ = batch.reshape(3, -1, 2)
        assert (offline[:, 1] != flagged[anchors[:, 0]]).all()


@pytest.mark.parametrize("options", [{}, {"companions": "omit", "negatives": 2}], ids=["one", "several"])
def test_a_pair_draws_negatives_a_margin_below_its_own_score_or_the_least_similar(options):
    rng = np.random.default_rng(3)
    images = rng.normal(size=(IMAGES, 3))
    table = hard_negatives(images, images[IMAGE_OF] + 0.4 * rng.normal(size=(PAIRS, 3)), IMAGE_OF, h=(12, 5))
    screened = table.screen(absolute_margin=0.2, range_max=10, margin_positive="own")
    sampler = BatchSampler(screened, batch_size=8, **options)
    few = 0
    for epoch in range(20):
        sampler.set_epoch(epoch)
        for batch in sampler:
            anchors, *drawn = batch.reshape(-1, 8, 2)[: 1 + options.get("negatives", 1)]
            for (i, t), *negatives in zip(anchors, *drawn, strict=True):
                ids, scores = table.i2t.negative_ids[i][:10], table.i2t.scores[i][:10]
                (own,) = table.t2i.positive_score[[t]]
                allowed = ids[scores <= own - 0.2] if (scores <= own - 0.2).any() else ids[-1:]
                few += 1 < len(allowed) < 10
                assert {t_off for _, t_off in negatives} <= {*allowed}
    assert few > 100


@pytest.mark.parametrize(
    "options", [{}, {"companions": "anchors"}, {"companions": "omit"}, {"companions": "omit", "negatives": 2}]
)
def test_what_a_screen_finds_to_match_is_a_further_positive(table, options):
    known = [(image, int(table.i2t.negative_ids[image, 1])) for image in range(4)]
    screened = replace(table, positives=TRUE).screen(
        positives=np.array(known, np.int32), mutual_rank=1, suspected="positive"
    )
    with pytest.raises(ValueError, match=r"takes matches from \['positives', 'same_text', 'judgements'\]; set one"):
        table.screen(mutual_rank=1, suspected="positive")
    sampler = BatchSampler(screened, batch_size=12, seed=1, **options)
    true, seen = {*map(tuple, TRUE.tolist()), *known}, dict.fromkeys(known, 0)
    groups = 1 if options.get("companions") == "anchors" else len(sampler.batch(0, 0)) // 12
    for epoch in range(40):
        for step in range(len(sampler)):
            batch = sampler.batch(epoch, step)
            anchors, *others = np.split(batch, groups)
            assert {*map(tuple, anchors.tolist())} <= true
            for pair in anchors.tolist():
                seen[tuple(pair)] = seen.get(tuple(pair), 0) + 1
            for drawn in others[:1]:
                for pairs in (np.stack([anchors[:, 0], drawn[:, 1]]), np.stack([drawn[:, 0], anchors[:, 1]])):
                    assert not {*map(tuple, pairs.T.tolist())} & true
            expected = [[(image, caption) in true for caption in batch[:, 1]] for image in batch[:, 0]]
            np.testing.assert_array_equal(sampler.is_positive(batch), expected)
    if groups == 1:  # pairs derived from the draws are anchors too
        return
    # a caption with one match is drawn with its own image as often as with the other
    (image, caption), *_ = [pair for pair in known if [one for _, one in known].count(pair[1]) == 1]
    own = seen[int(IMAGE_OF[caption]), caption]
    assert 0.25 < own / (own + seen[image, caption]) < 0.75


def test_a_match_is_never_spared_as_a_negative(table):
    known = np.array([[0, caption] for caption in table.i2t.negative_ids[0]], np.int32)
    screened = replace(table, positives=TRUE).screen(positives=known, suspected="positive")
    with pytest.raises(ValueError, match="the screen leaves 1 anchors of i2t no negative to draw, the first is 0"):
        BatchSampler(screened, batch_size=12)


def test_each_process_has_a_mined_batch_of_its_own_with_negatives_or_without(table, make):
    mined = {"batch_size": 8, "batches": "mined", "community": 4}
    lists = meeting_lists(table, TRUE)
    for rank in (0, 1):
        own = make(**mined, rank=rank, world_size=2)
        alone = make(**mined, rank=rank, world_size=2, offline=False)
        assert len(own) == len(alone) == PAIRS // 16
        for epoch, step in ((1, 0), (0, 0), (0, 2)):
            anchors = TRUE[mined_order(lists, 8, epoch, community=4)[16 * step + 8 * rank :][:8]]
            assert (own.batch(epoch, step)[:8] == anchors).all()
            assert (alone.batch(epoch, step) == anchors).all()


def test_a_mined_sampler_can_be_copied_and_pickled(make):
    """Trainers that save their arguments do so."""
    sampler = make(batch_size=8, batches="mined", strategy="normal")
    for again in (deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert again.batch(1, 0).tolist() == sampler.batch(1, 0).tolist()
