"""Mined batches against slow definitions: who meets, who must not, and every pair once."""

import numpy as np
import pytest

from aoq.pipeline.batches.lists import measure_meetings, meeting_lists, ranks_met
from aoq.pipeline.batches.order import meetings, mined_order, pass_graph, passes
from aoq.pipeline.data.batches import epoch_order
from aoq.pipeline.mining.mine import hard_negatives

IMAGES, EACH = 60, 3
PAIRS = IMAGES * EACH


@pytest.fixture(scope="module")
def table():
    """Images in six heaps, so that hard negatives are those of the same heap."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(6, 8))
    images = centres[np.arange(IMAGES) % 6] + 0.3 * rng.normal(size=(IMAGES, 8))
    captions = np.repeat(images, EACH, axis=0) + 0.3 * rng.normal(size=(PAIRS, 8))
    return hard_negatives(images, captions, np.arange(PAIRS) // EACH, h=(20, 8))


@pytest.fixture(scope="module")
def lists(table):
    return meeting_lists(table, table.positives)


def test_an_edge_counts_in_how_many_lists_two_pairs_stand(lists):
    rows = passes(lists.pairs[:, 0], np.random.default_rng(1))[0]
    graph = pass_graph(lists, rows, most=100, rng=np.random.default_rng(2))
    expected = {}
    for u, (i, c) in enumerate(lists.pairs[rows].tolist()):
        for v, (j, d) in enumerate(lists.pairs[rows].tolist()):
            by_image = [d in lists.i2t[i], c in lists.i2t[j]]
            by_caption = [j in lists.t2i[c], i in lists.t2i[d]]
            if u != v and any(by_image + by_caption):
                expected[u, v] = sum(by_image + by_caption)
    starts = np.repeat(np.arange(len(graph.offsets) - 1), np.diff(graph.offsets))
    found = dict(zip(zip(starts.tolist(), graph.neighbours.tolist(), strict=True), graph.weights, strict=True))
    assert found == expected


@pytest.mark.parametrize("size", [6, 8, 25, 64])
def test_an_epoch_has_every_pair_once_and_no_other_is_the_same(lists, size):
    orders = [mined_order(lists, size, epoch, seed=4, community=6) for epoch in (0, 1, 0)]
    assert all(sorted(order.tolist()) == list(range(PAIRS)) for order in orders)
    assert (orders[0] == orders[2]).all()
    assert (orders[0] != orders[1]).any()


def test_in_batch_negatives_are_harder_than_at_random(table, lists):
    def met(order):
        batches = np.split(lists.pairs[order], range(12, PAIRS, 12))
        return measure_meetings(table, lists, batches, np.random.default_rng(0))

    mined = met(mined_order(lists, 12, 0, community=6))
    random = met(epoch_order(PAIRS, seed=0, epoch=0))
    for direction in ("i2t", "t2i"):
        ours, theirs = mined.directions[direction], random.directions[direction]
        assert ours.hardest_rank < theirs.hardest_rank / 2
        assert ours.listed > 2 * theirs.listed
        assert ours.none_listed < theirs.none_listed


def test_ranks_met_are_places_in_the_lists(table, lists):
    batch = lists.pairs[np.random.default_rng(5).permutation(PAIRS)[:30]]
    for direction, (anchors, candidates) in (("i2t", batch.T), ("t2i", batch.T[::-1])):
        lists, h = table[direction].negative_ids[anchors].tolist(), table[direction].h
        expected = [[listed.index(other) if other in listed else h for other in candidates] for listed in lists]
        assert ranks_met(table, direction, batch).tolist() == expected


def test_what_a_screen_suspects_is_no_edge_and_never_meets(table):
    screened = table.screen(mutual_rank=3)
    view = screened.view
    lists = meeting_lists(table, table.positives, view=view)
    flagged = view.i2t.flags > 0
    assert flagged.any()
    assert (lists.i2t[flagged] == -1).all()
    assert lists.match(np.nonzero(flagged)[0], table.i2t.negative_ids[flagged]).all()
    order = mined_order(lists, 12, 0, community=6)
    assert len(meetings(lists, order, 12)) == 0
    bare = mined_order(meeting_lists(table, table.positives), 12, 0, community=6)
    assert len(meetings(lists, bare, 12)) > 0


def test_ranks_are_of_captions_and_of_as_many_fewer_images(table):
    lists = meeting_lists(table, table.positives, ranks=(3, 12))
    assert (lists.i2t == table.i2t.negative_ids[:, 3:12]).all()
    assert (lists.t2i == table.t2i.negative_ids[:, 1:4]).all()


def test_one_set_is_batched_too():
    vectors = np.random.default_rng(0).normal(size=(40, 8))
    table = hard_negatives(queries=vectors, positives=np.stack([np.arange(0, 40, 2), np.arange(1, 40, 2)], 1), h=6)
    lists = meeting_lists(table, table.positives)
    order = mined_order(lists, 8, 0, community=4)
    assert sorted(order.tolist()) == list(range(40))
    for batch in np.split(order, range(8, 40, 8)):
        rows = lists.pairs[batch].tolist()
        assert all(i != d for i, c in rows for j, d in rows if (i, c) != (j, d))
