"""A judge's file, of four kinds; what is wrong with it is named."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.screens.judgements import read_judgements

TABLE = pa.table(
    {"caption_id": [5, 2, 5, 1], "image_id": [0, 1, 3, 1], "probability": [0.25, 1, 0, None], "why": [*"abcd"]}
)


def write_all(folder):
    pq.write_table(TABLE, folder / "j.parquet")
    rows = ["caption_id,image_id,probability,why", '5,0,0.25,"a, a"', "2,1,1,b", "5,3,0,c", "1,1,,d"]
    (folder / "j.csv").write_text("\n".join(rows))
    (folder / "j.tsv").write_text("\n".join(row.replace("a, a", "a").replace(",", "\t") for row in rows))
    keys = ("caption_id", "image_id", "probability")
    (folder / "j.jsonl").write_text(
        "\n".join('{"%s": 5, "%s": 0, "%s": 0.25}\n{"%s": 2, "%s": 1, "%s": 1}' % (keys * 2) for _ in range(2))
        + '\n{"caption_id": 5, "image_id": 3, "probability": 0, "why": "c"}\n'
    )


def test_all_kinds_give_the_same_pairs_and_what_is_empty_is_not_judged(tmp_path):
    write_all(tmp_path)
    for given in (TABLE, *sorted(tmp_path.iterdir())):
        read = read_judgements(given, images=4, captions=6)
        assert read.pairs.tolist() == [[0, 5], [1, 2], [3, 5]]
        assert read.probabilities.tolist() == [0.25, 1, 0]


def test_grades_are_mapped_as_they_are_told(tmp_path):
    (tmp_path / "j.csv").write_text("caption_id,image_id,grade\n5,0,1\n2,1,5\n5,3,4\n")
    read = read_judgements(tmp_path / "j.csv", images=4, captions=6, grades=(1.0, 5.0))
    assert read.probabilities.tolist() == [0, 1, 0.75]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("j.txt", "0 5 1", "one of .parquet, .csv, .tsv, .jsonl"),
        ("j.csv", "caption_id,image_id\n5,0\n", r"columns are \['caption_id', 'image_id'\], and 'probability' must"),
        ("j.csv", "caption_id,image_id,grade\n5,0,3\n", "'probability' must be one of them"),
        ("j.csv", "caption_id,image_id,probability\n5,0,yes\n", "column 'probability' is of string"),
        ("j.csv", "caption_id,image_id,probability\n5,,1\n4,1,1\n", "1 values of column 'image_id' are empty"),
        ("j.csv", "caption_id,image_id,probability\n6,0,1\n", "pair 0 has caption 6, and there are captions 0 to 5"),
        ("j.csv", "caption_id,image_id,probability\n5,-1,1\n", "pair 0 has image -1"),
        ("j.csv", "caption_id,image_id,probability\n5,0,1.5\n", "image 0 and caption 5 have probability 1.5"),
        ("j.csv", "caption_id,image_id,probability\n5,0,0.5\n5,1,-1e-9\n", "have probability -1e-09, and it lies"),
        ("j.csv", "caption_id,image_id,probability\n5,0,inf\n", "have probability inf, and it lies between 0 and 1"),
        (
            "j.csv",
            "caption_id,image_id,probability\n5,0,0.5\n2,1,1\n5,0,0.7\n",
            "image 0 and caption 5 are judged twice, to match with probability 0.5 and 0.7",
        ),
        ("j.jsonl", '{"caption_id": 5, "image_id": 0, "probability": NaN}', "line 1: the number NaN is not finite"),
        ("j.jsonl", '{"caption_id": 5, "image_id": 0, "probability": 1}\n[5]', "line 2: the whole"),
        ("j.jsonl", '{"caption_id": 5, "image_id": 0}', "'probability' must be one of them"),
        ("j.parquet", "no parquet", "is damaged or not"),
    ],
)
def test_others_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_judgements(tmp_path / name, images=4, captions=6)


def test_nan_is_no_probability():
    table = pa.table({"caption_id": [5], "image_id": [0], "probability": [float("nan")]})
    with pytest.raises(ValueError, match="have probability nan, and it lies between 0 and 1"):
        read_judgements(table, images=4, captions=6)


def test_grades_lie_in_their_range(tmp_path):
    (tmp_path / "j.csv").write_text("caption_id,image_id,grade\n5,0,0\n")
    with pytest.raises(ValueError, match="have grade 0, and it lies between 1 and 5; give the judge's own range"):
        read_judgements(tmp_path / "j.csv", images=4, captions=6, grades=(1.0, 5.0))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"j\.csv does not exist"):
        read_judgements(tmp_path / "j.csv", images=4, captions=6)
