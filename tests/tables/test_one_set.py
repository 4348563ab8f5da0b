"""Tables of one set: what is wrong with one is found, and screens know that a row says what it says."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from aoq.pipeline.mining.mine import hard_negatives
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.screens.judgements import pairs_to_judge
from aoq.pipeline.tables.screens.view import bit, read_view
from aoq.pipeline.tables.table import read_table

ROWS, H = 30, 6
PAIRS = np.array([[0, 1], [1, 2], [7, 3]])


@pytest.fixture
def table():
    vectors = np.random.default_rng(0).normal(size=(ROWS, 6)).astype(np.float32)
    return hard_negatives(queries=vectors, positives=PAIRS, h=H)


def test_what_is_wrong_is_found(table):
    def found(**changes):
        return audit(replace(table, **changes))

    assert found() == []
    ids = table.i2t.negative_ids.copy()
    ids[4, 0] = 4
    lists = replace(table.i2t, negative_ids=ids)
    assert "i2t.parquet: a row among its own negatives (1 rows, the first is 4)" in found(i2t=lists, t2i=lists)
    itself = np.concatenate([table.positives, [[5, 5]]]).astype(np.int32)
    for positives in (table.positives[1:], itself):
        assert found(positives=positives) == ["positives.parquet: pairs in one order only, or of a row with itself"]
    scores = table.i2t.scores.copy()
    scores[:, 0] += np.arange(ROWS) / 8
    lists = replace(table.i2t, scores=scores)
    assert any("a score that differs from the other direction's" in one for one in found(i2t=lists, t2i=lists))


def test_a_screen_asks_whether_a_negative_says_what_the_row_or_its_positives_say(table, tmp_path):
    """Row n has text n // 2, so rows 2 n and 2 n + 1 have one text; known matches count both ways."""
    texts = [f"text {row // 2}" for row in range(ROWS)]
    known = [(row, int(table.i2t.negative_ids[row, 2])) for row in (5, 9)]
    screened = table.screen(texts=texts, same_text=True, mutual_rank=3, positives=np.array(known, np.int32))
    pairs = {tuple(pair) for pair in table.positives.tolist()}
    ids = table.i2t.negative_ids
    for row in range(ROWS):
        own = [row, *(other for other in range(ROWS) if (row, other) in pairs)]
        for place, negative in enumerate(ids[row].tolist()):
            flags = screened.flags("i2t")[row, place]
            assert bool(flags & bit("same_text")) == any(texts[negative] == texts[other] for other in own)
            assert bool(flags & bit("mutual_rank")) == (place < 3 and row in ids[negative, :3])
            assert bool(flags & bit("positives")) == bool({(row, negative), (negative, row)} & {*known})
    screened.save(tmp_path / "view")
    table.save(tmp_path / "table")
    assert not (tmp_path / "view" / "t2i.parquet").exists()
    view = read_view(tmp_path / "view", read_table(tmp_path / "table").manifest)
    np.testing.assert_array_equal(view.t2i.flags, screened.flags("i2t"))
    assert repr(screened).startswith(f"ScreenedTable(NegativeTable(i2t: {ROWS} lists of {H}, one set), i2t: ")


def test_a_caption_of_several_images_has_no_one_pair_to_doubt():
    rng = np.random.default_rng(2)
    pairs = np.array([[0, 4], [1, 4], [2, 5]])
    table = hard_negatives(queries=rng.normal(size=(9, 5)), documents=rng.normal(size=(20, 5)), positives=pairs, h=3)
    with pytest.raises(ValueError, match="needs one pair per caption, but caption 4 has 2; leave out the rule"):
        table.screen(doubtful_pair=0.5, pair_probabilities=np.ones(20, np.float32))


def test_a_judge_is_asked_of_each_pair_once_and_heard_in_either_order(table):
    ids = table.i2t.negative_ids
    asked = pairs_to_judge(table, top=3)
    pairs = list(zip(asked["image_id"].to_pylist(), asked["caption_id"].to_pylist(), strict=True))
    assert pairs == sorted({tuple(sorted((row, int(other)))) for row in range(ROWS) for other in ids[row, :3]})
    judged = {(other, row) for row, other in pairs[::5]}
    columns = zip(*sorted(judged), strict=True)
    given = pa.table([*map(list, columns), [1.0] * len(judged)], names=["image_id", "caption_id", "probability"])
    flags = table.screen(judgements=given).flags("i2t")
    for row in range(ROWS):
        for place, other in enumerate(ids[row].tolist()):
            assert bool(flags[row, place] & bit("judgements")) == bool({(row, other), (other, row)} & judged)


def test_either_order_of_a_pair_is_one_judgement(table):
    first, second = 4, int(table.i2t.negative_ids[4, 0])
    rows = {"image_id": [first, second], "caption_id": [second, first]}
    screened = table.screen(judgements=pa.table({**rows, "probability": [0.9, 0.5]}))
    assert screened.suspicion("i2t")[4, 0] == np.float32(0.7)  # the mean of several
