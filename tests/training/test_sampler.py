"""Drawing offline negatives: the official draws, the paper's re-sampling, lists and weights, and the ranks drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aoq.pipeline.config.screen import ScreenSection
from aoq.pipeline.config.tables import Sampling
from aoq.pipeline.tables.screens.judge import judge
from aoq.pipeline.tables.screens.knowledge import Knowledge
from aoq.pipeline.training import sampler as sampling
from aoq.pipeline.training.drawable import Drawable, DrawnRanks, drawable, drawn_ranks
from aoq.pipeline.training.sampler import STRATEGIES, Sampler
from tests.training.conftest import table_of


def sampler_of(table, image_of, *, h_captions=None, after_captions=0, view=None, suspected="drop", gaps=None, **how):
    """The sampler of a table's lists, narrowed and weighted."""
    lists = []
    for direction, h, after in (("i2t", h_captions, after_captions), ("t2i", None, 0)):
        judged = None if view is None else view[direction]
        narrowed = {"h": h, "after": after, "judged": judged, "suspected": suspected, "gaps": gaps}
        lists.append(drawable(direction, table[direction], **narrowed))
    return Sampler(*lists, image_of, **how)


def test_equals_the_official_dataset(golden):
    case = golden("aoq_dataset")
    i2t, t2i = case["in/i2t_candidates"].numpy(), case["in/t2i_candidates"].numpy()
    each = len(t2i) // len(i2t)
    image_of = np.repeat(np.arange(len(i2t), dtype=np.int32), each)
    lists = Drawable(i2t.astype(np.int32)), Drawable(t2i.astype(np.int32))
    sampler = Sampler(*lists, image_of, strategy="coupled", resample=False)
    rank, choice = case["in/draws"].numpy().reshape(-1, 2).T
    place = (rank + 0.5) / case.meta["config"]["offcandisize"]
    captions = np.arange(len(t2i), dtype=np.int32)
    anchors, negatives, own = sampler.at(sampler.pairs[captions], np.stack([place, place]), (choice + 0.5) / each)
    case.check("out/img_id", anchors[:, 0])
    for name, group in (("hn", negatives), ("hn2", own)):
        case.check(f"out/{name}_image", group[:, 0])
        case.check(f"out/{name}_caption", group[:, 1])


@pytest.fixture
def small():
    """Four images with 2, 1, 3 and 2 captions."""
    image_of = np.array([0, 0, 1, 2, 2, 2, 3, 3], dtype=np.int32)
    i2t = np.array([[c for c in range(8) if image_of[c] != m][:5] for m in range(4)])
    t2i = np.array([[m for m in range(4) if m != image_of[c]] for c in range(8)])
    return table_of(i2t, t2i), image_of


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_collisions_are_counted_and_kept_without_resampling(small, strategy):
    table, image_of = small
    kept = sampler_of(table, image_of, strategy=strategy, resample=False)
    captions = np.tile(np.arange(8, dtype=np.int32), 200)
    draw = kept.draw(captions, np.random.default_rng(0))
    colliding = draw.groups[2, :, 0] == draw.groups[1, :, 0]
    assert draw.collision_rate == colliding.mean() > 0.1
    again = sampler_of(table, image_of, strategy=strategy).draw(captions, np.random.default_rng(0))
    assert again.collision_rate == draw.collision_rate
    assert not (again.groups[2, :, 0] == again.groups[1, :, 0]).any()


def test_uniform_draws_cover_the_head_evenly_and_normal_ones_spare_its_ends(small):
    table, image_of = small
    captions = np.zeros(20_000, dtype=np.int32)
    shares = {}
    for strategy in ("uniform", "normal"):
        sampler = sampler_of(table, image_of, strategy=strategy, resample=False)
        drawn = sampler.draw(captions, np.random.default_rng(0)).groups[1, :, 1]
        shares[strategy] = [(drawn == entry).mean() for entry in table.i2t.negative_ids[0]]
    np.testing.assert_allclose(shares["uniform"], 0.2, atol=0.02)
    assert shares["normal"][0] < 0.15 < 0.25 < shares["normal"][2]


def test_short_lists_are_drawn_whole(small):
    table, image_of = small
    short = table.i2t.negative_ids.copy()
    short[:, 1:] = -1
    sampler = sampler_of(table_of(short, table.t2i.negative_ids), image_of, resample=False)
    anchors, negatives, _ = sampler.draw(np.arange(8, dtype=np.int32), np.random.default_rng(0)).groups
    np.testing.assert_array_equal(negatives[:, 1], short[anchors[:, 0], 0])


@pytest.mark.parametrize("gaps", [None, (0.0, 1.0)])
def test_the_hardest_are_left_out_by_rank(wide, gaps):
    """Whatever the weights say, and however short the lists are."""
    table, image_of = wide
    sampler = sampler_of(table, image_of, h_captions=4, after_captions=2, gaps=gaps, resample=False)
    np.testing.assert_array_equal(shares(sampler) > 0, [False, False, True, True, False])
    short = table.i2t.negative_ids.copy()
    short[1, 2:] = -1
    lists = table_of(short, table.t2i.negative_ids)
    with pytest.raises(ValueError, match="leaves out the first 2 of each list of i2t, but the shortest has 2; raise"):
        sampler_of(lists, image_of, after_captions=2)


def shares(sampler, draws=4000):
    """The fraction of draws for image 0 that fall on each caption."""
    draw = sampler.draw(np.zeros(draws, dtype=np.int32), np.random.default_rng(3))
    return np.bincount(draw.groups[1, :, 1], minlength=8)[2:7] / draws


@pytest.fixture
def wide(small):
    """Image 0's negatives are captions 2 to 6, falling from the positive's score in steps of 0.1."""
    table, image_of = small
    scores = 1.0 - 0.1 * np.arange(5)
    return table_of(table.i2t.negative_ids, table.t2i.negative_ids, scores, scores[:3]), image_of


def test_weights_by_score_gap(wide):
    """With sharpness 1e6 all weights underflow; what counts is how they relate."""
    table, image_of = wide
    by_gap = np.exp(-50.0 * (np.arange(5) * 0.1 - 0.1) ** 2)
    for gaps, expected in (((0.1, 50.0), by_gap / by_gap.sum()), ((-1.0, 1e6), [1, 0, 0, 0, 0])):
        found = shares(sampler_of(table, image_of, strategy="weighted", resample=False, gaps=gaps))
        np.testing.assert_allclose(found, expected, atol=0.03)
    without = replace(table, i2t=replace(table.i2t, positive_score=np.full(4, np.nan, np.float32)))
    with pytest.raises(ValueError, match="needs positives' scores, but 4 anchors have none"):
        sampler_of(without, image_of, gaps=(0.0, 1.0))


def test_windows_follow_the_epochs(wide):
    table, image_of = wide
    sampler = sampler_of(table, image_of, resample=False, windows=[(0.6, 1.0), (0.0, 0.2)])
    for epoch, expected in ((0, {5, 6}), (1, {2}), (7, {2})):
        draw = sampler.draw_for("quintuplet", np.zeros(200, dtype=np.int32), np.random.default_rng(1), epoch)
        assert set(draw.groups[1, :, 1].tolist()) == expected


@pytest.mark.parametrize(
    ("suspected", "expected"),
    [("drop", [0, 0, 0.5, 0.5, 0]), ("downweight", [0, 0.2, 0.4, 0.4, 0]), ("keep", [0, 1 / 3, 1 / 3, 1 / 3, 0])],
)
def test_what_a_view_leaves_is_drawn(wide, suspected, expected):
    """Of captions 2 to 6, the first and last are left out by range; the second is suspected with one half."""
    table, image_of = wide
    view = judge(table, ScreenSection(range_min=1, range_max=4, absolute_margin=0.15, mutual_rank=1), Knowledge())
    sampler = sampler_of(table, image_of, resample=False, view=view, suspected=suspected)
    np.testing.assert_allclose(shares(sampler), expected, atol=0.03)


def test_with_soft_margins_every_draw_has_the_suspicion_of_its_place(wide):
    (table, image_of), gaps = wide, (0.0, 1.0)
    screen = ScreenSection(range_min=1, absolute_margin=0.15, mutual_rank=1, suspected="soft_margin")
    view = judge(table, screen, Knowledge())
    sampler = sampler_of(table, image_of, view=view, suspected="soft_margin", gaps=gaps, h_captions=4, after_captions=1)
    draw = sampler.draw(np.tile(np.arange(8, dtype=np.int32), 5), np.random.default_rng(0))
    anchors, negatives, _ = draw.groups
    for row, direction in enumerate(("i2t", "t2i")):
        for b in range(40):
            anchor = anchors[b, row]
            (place,) = np.flatnonzero(table[direction].negative_ids[anchor] == negatives[b, 1 - row])
            assert place >= 1
            assert draw.match_probability[row, b] == view[direction].suspicion[anchor, place]
    assert len(np.unique(draw.match_probability)) > 1


def test_an_anchor_with_suspects_only_draws_the_least_suspected(wide, caplog):
    table, image_of = wide
    view = judge(table, ScreenSection(absolute_margin=0.9, mutual_rank=2), Knowledge())
    sampler = sampler_of(table, image_of, resample=False, view=view)
    mutual = [(table.t2i.negative_ids[caption][:2] == 0).any() for caption in (2, 3)]
    assert any(mutual)
    np.testing.assert_allclose(shares(sampler) > 0, [not mutual[0], not mutual[1], True, True, True])
    assert "4 of 4 anchors have suspected negatives only" in caplog.text
    view = judge(table, ScreenSection(max_score=0.0), Knowledge())
    with pytest.raises(ValueError, match="leaves 4 anchors of i2t no negative to draw, the first is 0"):
        sampler_of(table, image_of, view=view)


@pytest.mark.parametrize(
    ("direction", "row", "place", "wrong", "said"),
    [
        ("i2t", 2, 1, 4, r"the list of image 2 has caption 4 as a negative, but they are a true pair"),
        ("t2i", 7, 0, 3, r"the list of caption 7 has image 3 as a negative, but they are a true pair"),
        ("i2t", 1, 0, 8, r"the list of image 1 names caption 8 at rank 1, but there are captions 0 to 7"),
        ("t2i", 5, 2, -2, r"the list of caption 5 names image -2 at rank 3"),
        ("i2t", 3, 0, -1, r"the list of image 3 names caption 1 at rank 2, .* with -1 only at a list's end"),
    ],
)
def test_own_positives_and_ids_of_nothing_are_refused_at_once(small, monkeypatch, direction, row, place, wrong, said):
    monkeypatch.setattr(sampling, "READ_ROWS", 2)
    table, image_of = small
    table[direction].negative_ids[row, place] = wrong
    with pytest.raises(ValueError, match=said):
        sampler_of(table, image_of)


def test_an_own_positive_that_is_never_drawn_may_stand_in_a_list(small):
    table, image_of = small
    table.i2t.negative_ids[2, 1] = 4
    lists = drawable("i2t", table.i2t, weights=(table.i2t.negative_ids != 4).astype(np.float32))
    Sampler(lists, drawable("t2i", table.t2i), image_of)


AUTO = Sampling(hardness="auto")
SIZES = {"depth": 300, "candidates": 30_000, "batch": 64}


@pytest.mark.parametrize(
    ("sampling", "changed", "expected"),
    [
        (Sampling(), {}, (0, 300)),
        (Sampling(h_captions=60, h_images=9), {}, (0, 60)),
        (Sampling(h_captions=60, h_images=9), {"direction": "t2i"}, (0, 9)),
        (Sampling(hardness=15.0), {}, (0, 31)),
        (Sampling(hardness=15.0, hardest=150.0), {}, (3, 31)),
        (Sampling(hardness=1.0), {}, (0, 300)),
        (AUTO, {}, (0, 47)),  # 30,000 / (64 * 10)
        (AUTO, {"depth": 20}, (0, 20)),
        (AUTO, {"candidates": 500}, (0, 4)),
        (AUTO, {"candidates": 500, "depth": 3}, (0, 3)),
    ],
)
def test_lists_are_cut_by_what_a_batch_finds(sampling, changed, expected):
    found = drawn_ranks(sampling, **{"direction": "i2t", **SIZES, **changed})
    assert (found.start, found.stop) == expected


@pytest.mark.parametrize(("left", "stop"), [(1, 47), (2, 93), (300, 300)])
def test_what_a_screen_takes_is_made_up_for_further_down(left, stop):
    """The slow definition: the first rank up to which an average list has 47 negatives left, here one of `left`."""
    may_draw = (np.arange(300) + np.arange(40)[:, None]) % left == 0
    may_draw &= left < 300
    assert drawn_ranks(AUTO, "i2t", **SIZES, left=may_draw).stop == stop
    assert stop == next((rank for rank in range(1, 301) if may_draw[:, :rank].sum(axis=1).mean() >= 46.5), 300)


@pytest.mark.parametrize(
    ("start", "stop", "candidates", "end"),
    [
        (3, 31, 30_000, "draws from ranks 4 to 31, about 15 times harder"),  # a batch finds rank 469
        (0, 60, 600, "draws from the first 60, of which about 84% are easier"),  # 1 - 9.375 / 60
        (0, 1, 3, "draws from the first 1, no harder"),  # no rank is before the first
        (10, 60, 1280, "draws from ranks 11 to 60, of which about 80% are easier"),  # ranks 21 to 60
    ],
)
def test_draws_are_set_beside_a_batch(start, stop, candidates, end):
    assert str(DrawnRanks("t2i", start, stop, candidates, batch=64)).endswith(end)


def test_lists_of_an_image_have_the_score_of_the_pairs_own_caption_and_ranks_of_the_window(small):
    table, image_of = small
    table.i2t.positive_score[:], table.t2i.positive_score[:] = 0.1, np.arange(8) / 10
    sampler = sampler_of(table, image_of, windows=[(0.0, 0.5), (0.5, 1.0)])
    draw = sampler.draw_for("none", captions := np.arange(8, dtype=np.int32), rng := np.random.default_rng(0), 0)
    for epoch, ranks in ((-1, range(3)), (0, range(3)), (7, range(2, 5))):
        taught = sampler.with_lists(draw, 2, rng, epoch)
        np.testing.assert_array_equal(taught.listed_scores[:, :, 0], np.tile(table.t2i.positive_score, (2, 1)))
        listed = table.i2t.negative_ids[image_of][:, ranks]
        assert all(np.isin(taught.groups[1:, caption, 1], listed[caption]).all() for caption in captions)
