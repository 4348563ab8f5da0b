"""Agreement with people."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.evaluation.judgements import agreement, read_judgements


def test_correlations_and_errors_that_are_none():
    similarity = np.array([[0.9, 0.8, 0.1], [0.2, 0.3, 0.4], [0.1, 0.2, 0.3]])
    image_of = np.array([0, 1, 2])  # captions 1 and 2 find images 0 and 1
    pairs = np.array([[0, 0, 4.0], [0, 1, 3.0], [0, 1, 4.0], [1, 2, 1.0], [2, 2, 2.0]])
    judged = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), pairs[:, 2]
    found = agreement(similarity, image_of, judged, right_from=3.0)
    # scores 0.9, 0.8, 0.4, 0.3 beside means of 4, 3.5, 1, 2: one of six pairs is discordant
    assert found["kendall"] == pytest.approx(100 * 4 / 6)
    assert found["spearman"] == pytest.approx(100 * (1 - 6 * 2 / (4 * 15)))
    assert (found["judged"], found["false_hits"], found["right_share"]) == (4, 2, 50.0)


def test_judgements_are_read_from_csv_and_parquet(tmp_path):
    rows = {"image_id": [1, 0], "caption_id": [3, 2], "score": [2.5, 1.0]}
    pq.write_table(pa.table(rows), tmp_path / "given.parquet")
    (tmp_path / "given.csv").write_text("image_id,caption_id,score\n1,3,2.5\n0,2,1\n")
    for name in ("given.parquet", "given.csv"):
        image, caption, score = read_judgements(tmp_path / name, 2, 4)
        assert (image.tolist(), caption.tolist(), score.tolist()) == ([1, 0], [3, 2], [2.5, 1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image_id,caption_id\n1,3\n", "needs columns image_id, caption_id, score"),
        ("image_id,caption_id,score\n2,3,1\n", "names image_id 2 to 2, and the split has 0 to 1"),
        ("image_id,caption_id,score\n1,3,good\n", "needs columns"),
        ("image_id,caption_id,score\n1,3,nan\n", "line 2 has no finite score"),
        ("", "needs columns"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path, text, message):
    (tmp_path / "given.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_judgements(tmp_path / "given.csv", 2, 4)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_judgements(tmp_path / "none.csv", 2, 4)


def test_equal_scores_correlate_with_nothing():
    judged = np.array([0, 1]), np.array([0, 1]), np.array([2.0, 2.0])
    with pytest.raises(ValueError, match="nothing to correlate"):
        agreement(np.eye(2), np.array([0, 1]), judged, right_from=1.0)
