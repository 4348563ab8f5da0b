"""Drawing offline negatives: the official draws, the paper's re-sampling, and the same draw again."""

from __future__ import annotations

import numpy as np
import pytest

from aoq.pipeline.config.screen import Screen
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.screens.rules import Knowledge
from aoq.pipeline.tables.screens.screened import judge
from aoq.pipeline.tables.table import NegativeTable
from aoq.pipeline.training.draw_weights import GapWeights, draw_weights, drawn_ranks
from aoq.pipeline.training.sampler import STRATEGIES, Sampler


def table_of(i2t, t2i):
    lists = [
        NegativeLists(ids.astype(np.int32), np.zeros(ids.shape, np.float32), np.zeros(len(ids), np.float32))
        for ids in (i2t, t2i)
    ]
    return NegativeTable(*lists, manifest={})


def sampler_of(
    table,
    image_of,
    *,
    h_captions=None,
    h_images=None,
    after_captions=0,
    gaps=None,
    view=None,
    suspected="drop",
    **how,
):
    """The sampler of a table's lists, narrowed and weighted."""
    ids, weights = [], []
    for direction, h, after in (("i2t", h_captions, after_captions), ("t2i", h_images, 0)):
        lists = table[direction]
        ranks = drawn_ranks(direction, lists.negative_ids, h=h, after=after)
        ids.append(lists.negative_ids[:, ranks])
        judged = None if view is None else view[direction]
        weights.append(draw_weights(direction, lists, ranks, judged=judged, suspected=suspected, gaps=gaps))
    return Sampler(*ids, image_of, i2t_weights=weights[0], t2i_weights=weights[1], **how)


def test_equals_the_official_dataset(golden):
    case = golden("aoq_dataset")
    i2t, t2i = case["in/i2t_candidates"].numpy(), case["in/t2i_candidates"].numpy()
    each = len(t2i) // len(i2t)
    image_of = np.repeat(np.arange(len(i2t), dtype=np.int32), each)
    sampler = Sampler(i2t.astype(np.int32), t2i.astype(np.int32), image_of, strategy="coupled", resample=False)
    rank, choice = case["in/draws"].numpy().reshape(-1, 2).T
    place = (rank + 0.5) / case.meta["config"]["offcandisize"]
    draw = sampler.at(np.arange(len(t2i), dtype=np.int32), np.stack([place, place]), (choice + 0.5) / each)
    for key, rows in [
        ("img_id", draw.images),
        ("hn_image", draw.offline_images),
        ("hn_caption", draw.offline_captions),
        ("hn2_image", draw.own_images),
        ("hn2_caption", draw.own_captions),
    ]:
        case.check(f"out/{key}", rows)


@pytest.fixture
def small():
    """Four images with 2, 1, 3 and 2 captions."""
    image_of = np.array([0, 0, 1, 2, 2, 2, 3, 3], dtype=np.int32)
    i2t = np.array([[c for c in range(8) if image_of[c] != m][:5] for m in range(4)])
    t2i = np.array([[m for m in range(4) if m != image_of[c]] for c in range(8)])
    return table_of(i2t, t2i), image_of


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_draws_are_negatives_with_their_companions_and_never_correspond(small, strategy):
    table, image_of = small
    sampler = sampler_of(table, image_of, strategy=strategy)
    for seed in range(50):
        captions = np.random.default_rng(seed).permutation(8).astype(np.int32)
        draw = sampler.draw(captions, np.random.default_rng(seed))
        for b, caption in enumerate(captions):
            image = image_of[caption]
            assert draw.images[b] == image
            assert draw.offline_captions[b] in table.i2t.negative_ids[image]
            assert draw.offline_images[b] in table.t2i.negative_ids[caption]
            assert draw.own_images[b] == image_of[draw.offline_captions[b]]
            assert image_of[draw.own_captions[b]] == draw.offline_images[b]
            assert draw.own_images[b] != draw.offline_images[b]


def test_collisions_are_counted_and_kept_without_resampling(small):
    table, image_of = small
    kept = sampler_of(table, image_of, resample=False)
    captions = np.tile(np.arange(8, dtype=np.int32), 200)
    draw = kept.draw(captions, np.random.default_rng(0))
    colliding = draw.own_images == draw.offline_images
    assert draw.collision_rate == colliding.mean() > 0.1
    again = sampler_of(table, image_of, resample=True).draw(captions, np.random.default_rng(0))
    assert again.collision_rate == draw.collision_rate
    assert not (again.own_images == again.offline_images).any()


def test_a_pair_that_can_only_collide_ends(small):
    image_of = np.array([0, 1], dtype=np.int32)
    sampler = sampler_of(table_of(np.array([[1], [0]]), np.array([[1], [0]])), image_of)
    draw = sampler.draw(np.array([0], dtype=np.int32), np.random.default_rng(0))
    assert draw.collision_rate == 1.0
    assert draw.corresponding.all()


def test_the_same_rng_draws_the_same(small):
    table, image_of = small
    sampler = sampler_of(table, image_of)
    captions = np.arange(8, dtype=np.int32)
    first, second = (sampler.draw(captions, np.random.default_rng([7, 2, 5])) for _ in range(2))
    for name in ("offline_captions", "offline_images", "own_images", "own_captions"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


def test_uniform_draws_cover_the_head_evenly_and_normal_ones_spare_its_ends(small):
    table, image_of = small
    captions = np.zeros(20_000, dtype=np.int32)
    shares = {}
    for strategy in ("uniform", "normal"):
        sampler = sampler_of(table, image_of, strategy=strategy, resample=False)
        drawn = sampler.draw(captions, np.random.default_rng(0)).offline_captions
        shares[strategy] = [(drawn == entry).mean() for entry in table.i2t.negative_ids[0]]
    np.testing.assert_allclose(shares["uniform"], 0.2, atol=0.02)
    assert shares["normal"][0] < 0.15 < 0.25 < shares["normal"][2]


def test_narrowing_and_short_lists(small):
    table, image_of = small
    sampler = sampler_of(table, image_of, h_captions=2, h_images=1, resample=False)
    draw = sampler.draw(np.tile(np.arange(8, dtype=np.int32), 50), np.random.default_rng(0))
    assert all(c in table.i2t.negative_ids[m, :2] for c, m in zip(draw.offline_captions, draw.images, strict=True))
    short = table.i2t.negative_ids.copy()
    short[:, 1:] = -1
    drawn = sampler_of(table_of(short, table.t2i.negative_ids), image_of, resample=False).draw(
        np.arange(8, dtype=np.int32), np.random.default_rng(0)
    )
    np.testing.assert_array_equal(drawn.offline_captions, short[drawn.images, 0])


@pytest.mark.parametrize("gaps", [None, GapWeights(gap=0.0, sharpness=1.0)])
def test_the_hardest_are_left_out_by_rank(wide, gaps):
    """Whatever the weights say, and however short the lists are."""
    table, image_of = wide
    sampler = sampler_of(table, image_of, h_captions=4, after_captions=2, gaps=gaps, resample=False)
    np.testing.assert_array_equal(shares(sampler) > 0, [False, False, True, True, False])
    short = table.i2t.negative_ids.copy()
    short[1, 2:] = -1
    lists = scored(short, table.t2i.negative_ids, 0.5, 0.5)
    with pytest.raises(
        ValueError, match="leaves out the first 2 of each list of i2t, and the shortest has 2; raise it"
    ):
        sampler_of(lists, image_of, after_captions=2)


def test_tables_that_do_not_fit_are_refused(small):
    table, image_of = small
    with pytest.raises(ValueError, match=r"h_captions = 9, but the table keeps 5"):
        sampler_of(table, image_of, h_captions=9)
    with pytest.raises(ValueError, match="mined on other data"):
        sampler_of(table, image_of[:-1])
    empty = table.t2i.negative_ids.copy()
    empty[2] = -1
    with pytest.raises(ValueError, match=r"1 anchors of t2i have no negative at all, the first is 2"):
        sampler_of(table_of(table.i2t.negative_ids, empty), image_of)


def scored(i2t, t2i, i2t_scores, t2i_scores, positive=1.0):
    sides = []
    for ids, scores in ((i2t, i2t_scores), (t2i, t2i_scores)):
        given = np.broadcast_to(np.float32(scores), ids.shape)
        sides.append(NegativeLists(ids.astype(np.int32), given, np.full(len(ids), positive, np.float32)))
    return NegativeTable(*sides, manifest={"directions": {d: {"sha256": d} for d in ("i2t", "t2i")}})


def shares(sampler, draws=4000):
    """How often each caption is drawn for image 0."""
    draw = sampler.draw(np.zeros(draws, dtype=np.int32), np.random.default_rng(3))
    return np.bincount(draw.offline_captions, minlength=8)[2:7] / draws


@pytest.fixture
def wide(small):
    """Image 0's negatives are captions 2 to 6, falling from the positive's score in steps of 0.1."""
    table, image_of = small
    scores = 1.0 - 0.1 * np.arange(5)
    return scored(table.i2t.negative_ids, table.t2i.negative_ids, scores, scores[:3]), image_of


def test_weights_by_score_gap(wide):
    table, image_of = wide
    weights = GapWeights(gap=0.1, sharpness=50.0)
    expected = np.exp(-50.0 * (np.arange(5) * 0.1 - 0.1) ** 2)
    found = shares(sampler_of(table, image_of, strategy="weighted", resample=False, gaps=weights))
    np.testing.assert_allclose(found, expected / expected.sum(), atol=0.03)


def test_weights_far_below_what_numbers_hold_still_draw(wide):
    """exp(-1e6 ...) is 0 for every negative; what counts is how they stand to each other."""
    table, image_of = wide
    weights = GapWeights(gap=-1.0, sharpness=1e6)
    found = shares(sampler_of(table, image_of, strategy="weighted", resample=False, gaps=weights))
    np.testing.assert_array_equal(found, [1, 0, 0, 0, 0])


def test_weights_need_positives(wide):
    table, image_of = wide
    without = NegativeTable(
        *(NegativeLists(d.negative_ids, d.scores, d.scores[:, 0] * np.nan) for d in (table.i2t, table.t2i)), manifest={}
    )
    with pytest.raises(ValueError, match="needs positives' scores, and 4 anchors have none"):
        sampler_of(without, image_of, gaps=GapWeights(0.0, 1.0))


def test_windows_follow_the_epochs(wide):
    table, image_of = wide
    sampler = sampler_of(table, image_of, resample=False, windows=[(0.6, 1.0), (0.0, 0.2)])
    for epoch, expected in ((0, {5, 6}), (1, {2}), (7, {2})):
        draw = sampler.draw(np.zeros(200, dtype=np.int32), np.random.default_rng(1), epoch)
        assert set(draw.offline_captions.tolist()) == expected


def test_a_window_narrows_the_draw_and_nothing_else(wide):
    table, image_of = wide
    plain, same = (sampler_of(table, image_of, **more) for more in ({}, {"windows": [(0.0, 1.0)]}))
    captions = np.arange(8, dtype=np.int32)
    one, other = (sampler.draw(captions, np.random.default_rng(5)) for sampler in (plain, same))
    np.testing.assert_array_equal(one.offline_captions, other.offline_captions)


@pytest.mark.parametrize(
    ("suspected", "expected"),
    [("drop", [0, 0, 0.5, 0.5, 0]), ("downweight", [0, 0.2, 0.4, 0.4, 0]), ("keep", [0, 1 / 3, 1 / 3, 1 / 3, 0])],
)
def test_what_a_view_leaves_is_drawn(wide, suspected, expected):
    """Of captions 2 to 6, the first and last are left out by range, the second is half suspected."""
    table, image_of = wide
    view = judge(table, Screen(range_min=1, range_max=4, absolute_margin=0.15, mutual_rank=1), Knowledge())
    sampler = sampler_of(table, image_of, resample=False, view=view, suspected=suspected)
    np.testing.assert_allclose(shares(sampler), expected, atol=0.03)


def test_an_anchor_with_suspects_only_draws_the_least_suspected(wide, caplog):
    table, image_of = wide
    view = judge(table, Screen(absolute_margin=0.9, mutual_rank=2), Knowledge())
    sampler = sampler_of(table, image_of, resample=False, view=view)
    mutual = [(table.t2i.negative_ids[caption][:2] == 0).any() for caption in (2, 3)]
    assert any(mutual)
    np.testing.assert_allclose(shares(sampler) > 0, [not mutual[0], not mutual[1], True, True, True])
    assert "4 of 4 anchors have suspected negatives only" in caplog.text


def test_a_view_that_leaves_nothing_is_refused(wide):
    table, image_of = wide
    view = judge(table, Screen(max_score=0.0), Knowledge())
    with pytest.raises(ValueError, match="leaves 4 anchors of i2t no negative to draw, the first is 0"):
        sampler_of(table, image_of, view=view)
