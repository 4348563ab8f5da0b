"""Negatives by turns: every one before any comes again, in any loader, and whoever asks."""

import numpy as np
import pytest
from torch.utils.data import DataLoader

from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.training.rotation import Rotation

IMAGES, EACH, H = 12, 2, {"i2t": 10, "t2i": 7}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(IMAGES, 6)), rng.normal(size=(IMAGES * EACH, 6))
    return hard_negatives(*vectors, np.arange(IMAGES * EACH) // EACH, h=tuple(H.values()))


@pytest.mark.parametrize("direction", H)
@pytest.mark.parametrize("k", [1, 3])
def test_every_negative_has_a_turn_before_any_comes_again(table, direction, k):
    rotation, h = Rotation(table, direction, k=k, seed=1), H[direction]
    for anchor, listed in enumerate(table[direction].negative_ids.tolist()):
        turns = [rotation.negatives([anchor], epoch)[0].tolist() for epoch in range(2 * h)]
        assert all(len(set(turn)) == k for turn in turns)
        drawn = [one for turn in turns for one in turn]
        for start in range(0, len(drawn) - h + 1, h):
            assert sorted(drawn[start : start + h]) == sorted(listed)


def test_what_a_screen_flags_has_no_turn_and_a_list_shorter_than_a_set_comes_again(table):
    found = Rotation(table, "i2t", k=9, h=4).negatives([3], 5)[0].tolist()
    assert set(found) == set(table.i2t.negative_ids[3, :4].tolist())
    assert found[:4] == found[4:8]
    view = table.screen(mutual_rank=4)
    rotation = Rotation(view, "i2t", k=2)
    for anchor, (listed, flags) in enumerate(zip(table.i2t.negative_ids, view.flags("i2t"), strict=True)):
        had = {one for epoch in range(H["i2t"]) for one in rotation.negatives([anchor], epoch)[0].tolist()}
        assert had == set(listed[flags == 0].tolist())
    assert view.flags("i2t").any()


def test_a_downweighted_negative_has_fewer_turns(table):
    view = table.screen(match_prior=0.3, suspected="downweight")
    rotation, epochs = Rotation(view, "i2t", k=2), 1000
    for anchor in range(0, IMAGES, 3):
        drawn = np.concatenate([rotation.negatives([anchor], epoch)[0] for epoch in range(epochs)])
        frequency = np.array([(drawn == one).mean() for one in table.i2t.negative_ids[anchor]])
        weights = view.weights("i2t")[anchor]
        np.testing.assert_allclose(frequency, weights / weights.sum(), atol=0.004)
    assert len(np.unique(view.weights("i2t"))) > IMAGES
    with pytest.raises(ValueError, match="soft margins are applied by the loss"):
        Rotation(table.screen(match_prior=0.3, suspected="soft_margin"), "i2t", k=2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_is_told_the_epoch(table, workers):
    """Workers that stay are told too."""
    rotation = Rotation(table, "i2t", k=3)
    several = {"num_workers": workers, "persistent_workers": True} if workers else {}
    loader = DataLoader(rotation, batch_size=6, **several)
    for epoch in range(3):
        rotation.set_epoch(epoch)
        rows = [row for batch in loader for row in zip(*batch.values(), strict=True)]
        assert [[int(anchor), int(positive)] for anchor, positive, _ in rows] == table.positives.tolist()
        for anchor, _, negatives in rows:
            assert negatives.tolist() == rotation.negatives([int(anchor)], epoch)[0].tolist()


def test_rows_have_what_stands_for_them(table):
    rotation = Rotation(table, "t2i", k=2, anchors=range(100, 124), candidates=range(200, 212))
    for row in range(len(rotation)):
        found = rotation[row]
        assert found["anchor"] == 100 + found["anchor_id"]
        assert found["positive"] == 200 + found["positive_id"] == 200 + found["anchor_id"] // EACH
        assert found["negatives"] == [200 + one for one in found["negative_ids"]]


@pytest.mark.filterwarnings("ignore")
def test_rows_of_a_data_set_get_columns(table):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"anchor_id": [5, 2, 5], "caption": list("abc")})
    rotation = Rotation(table, "t2i", k=2, candidates=[f"p {row}" for row in range(IMAGES)])
    train = whole.with_transform(rotation)
    for epoch in (0, 2):
        rotation.set_epoch(epoch)
        expected = [[f"p {one}" for one in place] for place in rotation.negatives([5, 2, 5], epoch).T]
        assert train[:] == {"caption": list("abc"), "negative_1": expected[0], "negative_2": expected[1]}
    bare = whole.with_transform(Rotation(table, "t2i", k=1))[:]
    assert bare["negative_1"] == Rotation(table, "t2i", k=1).negatives([5, 2, 5], 0)[:, 0].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"direction": "both"}, r'it must be "i2t" \(of images\) or "t2i"'),
        ({"k": 0}, "leaves no negatives; give at least 1"),
        ({"h": 11}, "h = 11, but the table keeps 10 per anchor in i2t"),
        ({"anchors": ["a"]}, "1 images are given for 12 rows"),
        ({"candidates": ["a"]}, "1 captions are given for 24 rows"),
    ],
)
def test_other_options_are_refused(table, options, message):
    with pytest.raises(ValueError, match=message):
        Rotation(table, **{"direction": "i2t", "k": 2} | options)


def test_a_set_larger_than_a_list_is_told(table, caplog):
    Rotation(table, "i2t", k=10)
    assert not caplog.text
    assert len({*Rotation(table, "i2t", k=11).negatives([0])[0].tolist()}) == 10
    assert "12 lists of i2t are shorter than k = 11, and repeat their negatives" in caplog.text


def test_other_tables_and_rows_are_refused(table):
    with pytest.raises(ValueError, match="no lists of t2i; mine both directions"):
        Rotation(hard_negatives(np.eye(4), np.eye(4), np.arange(4), h=(2, 0)), "t2i", k=1)
    rotation = Rotation(table, "i2t", k=1)
    with pytest.raises(ValueError, match="anchor_id 12 is not one of the table's images, 0 to 11"):
        rotation.negatives([3, 12])
    with pytest.raises(ValueError, match="rows have the columns image, and a rotation finds"):
        rotation({"image": ["a"]})
