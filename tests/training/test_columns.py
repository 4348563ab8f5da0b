"""Several offline negatives per anchor, compared with all anchors of the batch or with their own."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import aoq
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.config.screen import RULES
from aoq.pipeline.losses.hinge import NO_NEGATIVE
from aoq.pipeline.tables.screens.view import EXCLUDED, Judged
from aoq.pipeline.training.batches import matched, read_batch
from aoq.pipeline.training.drawable import drawable
from aoq.pipeline.training.sampler import Sampler
from aoq.pipeline.training.step import forward, make_objective
from tests.training.conftest import of_loss, random_lists, sampler_of, table_of
from tests.training.steps import fresh, read

ROWS = np.arange(0, 48, 5, dtype=np.int32)
SUSPECTED = 1 << RULES.index("same_text")


def rng_vectors(count):
    return np.random.default_rng(count).normal(size=(count, 8)).astype(np.float32)


def table_of_random_vectors():
    return aoq.hard_negatives(rng_vectors(12), rng_vectors(36), np.repeat(np.arange(12), 3), h=(9, 2))


@pytest.mark.parametrize("shared", [True, False])
def test_columns_leave_out_true_pairs_what_a_screen_drops_and_repetitions(pairs, shared):
    image_of = pairs.split.image_of
    i2t, t2i, rng = random_lists(image_of)
    flags = [np.where(rng.random(ids.shape) > 0.6, SUSPECTED, 0).astype(np.uint32) for ids in (i2t, t2i)]
    flags = [np.where(rng.random(one.shape) > 0.8, EXCLUDED, one).astype(np.uint32) for one in flags]
    for one in flags:
        one[:, 1] = 0
    table = table_of(i2t, t2i)
    lists = [
        drawable(direction, table[direction], after=1, judged=Judged(one, (one == SUSPECTED).astype("f4")))
        for direction, one in zip(("i2t", "t2i"), flags, strict=True)
    ]
    no_negatives = {*zip(image_of, range(48), strict=True)}
    no_negatives |= {(m, c) for m in range(16) for c in i2t[m][flags[0][m] == SUSPECTED]}
    no_negatives |= {(m, c) for c in range(48) for m in t2i[c][flags[1][c] == SUSPECTED]}
    sampler, count, size = Sampler(*lists, image_of, negatives=3, shared=shared), 3, len(ROWS)
    draw, seen = sampler.draw_for("anchors", ROWS, np.random.default_rng(2), 0), set()
    assert draw.groups.shape == (1 + count, size, 2)
    np.testing.assert_array_equal(draw.groups[0], np.stack([image_of[ROWS], ROWS], axis=1))
    images, captions = draw.groups[1:].transpose(2, 0, 1)
    for a, (image, caption) in enumerate(draw.groups[0].tolist()):
        assert {*captions[:, a]} <= {*i2t[image][1:][flags[0][image][1:] == 0]}
        assert {*images[:, a]} <= {*t2i[caption][1:][flags[1][caption][1:] == 0]}
        for k, b in product(range(count), range(size) if shared else [a]):
            repeats = [k > 0 and bool(side[k, b] == side[k - 1, b]) for side in (captions, images)]
            pairs = [(image, captions[k, b]), (images[k, b], caption)] if b != a else [(), ()]
            excluded = [again or pair in no_negatives for again, pair in zip(repeats, pairs, strict=True)]
            assert draw.excluded[:, a, k * size + b if shared else k].tolist() == excluded
            seen.add((*excluded, *repeats))
    assert len(seen) >= (5 if shared else 2)


def test_a_list_yields_each_negative_once_before_it_repeats(pairs):
    for count in (2, 3, 4):  # of lists of four images
        draw = sampler_of(pairs, negatives=count).draw_for("anchors", ROWS, np.random.default_rng(0), 0)
        assert all(len({*column}) == count for column in draw.groups[1:, :, 0].T)
    short = sampler_of(pairs, negatives=8, shared=False).draw_for("anchors", ROWS, np.random.default_rng(0), 0)
    assert (short.excluded[1].sum(axis=1) == 4).all()


def test_each_column_is_the_pair_that_the_sampler_drew(pairs):
    sampler = sampler_of(pairs, negatives=2)
    draw, model, seen = sampler.draw_for("anchors", ROWS, np.random.default_rng(1), 0), fresh("vsepp"), []
    objective = make_objective(LossSection.kind("infonce")(name="infonce"))
    watched = replace(objective, loss=lambda given: seen.append(given) or objective.loss(given))
    forward(model.eval(), read(pairs, draw), watched)
    everything = read(pairs, matched(pairs, np.arange(48, dtype=np.int32)))
    images, captions = model.encode_images(everything.images), model.encode_captions(everything.captions)
    scores = model.similarity(images, captions)[::3]  # each image once
    drawn = draw.groups[1:].reshape(-1, 2)
    excluded = torch.from_numpy(draw.excluded)
    expected = [scores[draw.groups[0, :, :1], drawn[None, :, 1]], scores[drawn[None, :, 0], draw.groups[0, :, 1:]]]
    size, offline = len(ROWS), seen[0].offline
    for own, others, theirs, mask in zip(offline.columns, offline.others, expected, excluded, strict=True):
        masked = theirs.masked_fill(mask, NO_NEGATIVE)
        for a in range(size):
            torch.testing.assert_close(own[a], masked[a, a::size])
            masked[a, a::size] = NO_NEGATIVE
        torch.testing.assert_close(others, masked)


@pytest.mark.parametrize("name", ["infonce", "offtri"])
def test_one_negative_of_its_own_trains_as_by_default(pairs, run_training, tmp_path, name):
    trainings = [
        run_training(tmp_path / str(number), training=of_loss(name), sampler=sampler_of(pairs, **options))[0]
        for number, options in enumerate(({}, {"negatives": 1, "shared": False}, {"negatives": 1}))
    ]
    weights = [training["final_weights_sha256"] for training in trainings]
    assert weights[0] == weights[1] != weights[2]
    batch = read_batch(pairs, sampler_of(pairs).draw_for("anchors", ROWS, np.random.default_rng(0), 0))
    assert batch.excluded is None


@pytest.mark.parametrize("shared", [True, False])
def test_other_trainers_draw_and_compare_the_same_columns(shared):
    table = table_of_random_vectors()
    screened = table.screen(mutual_rank=3)
    sampler = aoq.BatchSampler(screened, batch_size=6, companions="omit", negatives=3, shared=shared)
    rows, vectors = sampler.batch(0, 1), [torch.from_numpy(rng_vectors(n)) for n in (12, 36)]
    assert rows.shape == (24, 2)
    excluded = sampler.excluded(rows)
    images, captions = (side[column] for side, column in zip(vectors, rows.T, strict=True))
    offline = aoq.offline_similarities(images, captions, excluded=excluded)
    for side, (anchors, drawn) in enumerate(((images, captions), (captions, images))):
        for a in range(6):
            for column, row in enumerate(range(6, 24) if shared else range(6 + a, 24, 6)):
                image, caption = (rows[a, 0], rows[row, 1]) if side == 0 else (rows[row, 0], rows[a, 1])
                wanted = NO_NEGATIVE if excluded[side, a, column] else (anchors[a] @ drawn[row]).item()
                if shared and column % 6 != a:
                    assert caption // 3 != image or excluded[side, a, column]
                    found = offline.others[side][a, column]
                else:
                    found = offline.columns[side][a, column // 6 if shared else column]
                assert found.item() == pytest.approx(wanted, rel=1e-5)
    assert excluded.any()
    assert sampler.draw_each(np.arange(5), 0).shape == (4, 5, 2)
    pairs = aoq.Similarities(images[:6] @ captions[:6].T, torch.as_tensor(sampler.is_positive(rows[:6])), offline)
    assert torch.isfinite(aoq.info_nce(pairs).total)


def test_a_batch_of_other_rows_is_refused():
    table = table_of_random_vectors()
    with pytest.raises(ValueError, match=r"give 1 or more, and companions=\"omit\""):
        aoq.BatchSampler(table, batch_size=6, negatives=3)
    sampler = aoq.BatchSampler(table, batch_size=6, companions="omit", negatives=3)
    rows = sampler.batch(0, 0)
    with pytest.raises(ValueError, match="23 rows are not anchors with several `negatives`"):
        sampler.excluded(rows[:-1])
    with pytest.raises(ValueError, match="needs a number of `negatives`"):
        aoq.BatchSampler(table, batch_size=6, companions="omit", shared=False)
    with pytest.raises(ValueError, match="set `negatives` to draw several"):
        aoq.BatchSampler(table, batch_size=6, companions="omit").excluded(rows)
    with pytest.raises(ValueError, match="are not one batch"):
        aoq.offline_similarities(torch.ones(18, 2), torch.ones(18, 2), excluded=sampler.excluded(rows))
