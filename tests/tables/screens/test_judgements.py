"""Files of judged pairs, of every kind, and the sentences that refuse others."""

import pyarrow as pa
import pytest

from aoq.pipeline.tables.pairs import TABLE_SUFFIXES
from aoq.pipeline.tables.screens.judgements import read_judgements, read_matches, write_pairs

TABLE = pa.table(
    {"caption_id": [5, 2, 5, 1], "image_id": [0, 1, 3, 1], "probability": [0.25, 1, 0, None], "why": [*"abcd"]}
)
HEAD = "caption_id,image_id,probability\n"


def test_all_kinds_give_the_same_pairs_and_empty_values_are_not_judged(tmp_path):
    for suffix in TABLE_SUFFIXES:
        write_pairs(tmp_path / f"j{suffix}", TABLE)
        write_pairs(tmp_path / f"m{suffix}", TABLE.select(["caption_id", "image_id", "why"]))
    for source in (TABLE, *sorted(tmp_path.glob("j.*"))):
        read = read_judgements(source, images=4, captions=6)
        assert read.pairs.tolist() == [[0, 5], [1, 2], [3, 5]]
        assert read.probabilities.tolist() == [0.25, 1, 0]
    (tmp_path / "m.json").write_text('{"5": [0, 3], "2": [1], "1": [1]}')
    for suffix in (".parquet", ".csv", ".json"):
        matches = read_matches(tmp_path / f"m{suffix}", images=4, captions=6)
        assert matches.tolist() == [[0, 5], [1, 1], [1, 2], [3, 5]]


def test_grades_become_probabilities_and_lie_in_their_range(tmp_path):
    (tmp_path / "j.csv").write_text("caption_id,image_id,grade\n5,0,1\n2,1,5\n5,3,4\n")
    read = read_judgements(tmp_path / "j.csv", images=4, captions=6, grades=(1.0, 5.0))
    assert read.probabilities.tolist() == [0, 1, 0.75]
    with pytest.raises(ValueError, match="have grade 1, but it lies between 2 and 5; give the judge's own range"):
        read_judgements(tmp_path / "j.csv", images=4, captions=6, grades=(2.0, 5.0))


@pytest.mark.parametrize(
    ("read", "name", "content", "message"),
    [
        (read_judgements, "j.txt", "0 5 1", "one of .parquet, .csv, .tsv, .jsonl"),
        (read_judgements, "j.csv", "caption_id,image_id\n5,0\n", "needs one column 'probability'; its columns"),
        (read_judgements, "j.csv", f"{HEAD}5,,1\n4,1,1\n", "1 values of column 'image_id' are empty"),
        (read_judgements, "j.csv", f"{HEAD}5,0,0.5\n5,1,-1e-9\n", "have probability -1e-09, but it lies"),
        (read_judgements, "j.jsonl", '{"caption_id": 5, "probability": NaN}', "line 1: the number NaN is not finite"),
        (read_judgements, "j.parquet", "no parquet", "is damaged or not"),
        (read_judgements, "j.parquet", None, r"j\.parquet does not exist"),
        (read_matches, "m.csv", f"{HEAD}5,0,0\n", "has a column 'probability', so not all of its pairs match"),
        (read_matches, "m.txt", "0 5", "one of .parquet, .csv, .json"),
        (read_matches, "m.csv", "image,caption\n0,5\n", "caption_id"),
        (read_matches, "m.json", '{"a": [1]}', "is damaged or not pairs known to match"),
        (read_matches, "m.json", '{"5": [0.5]}', "5.0: input should be a valid integer"),
        (read_matches, "m.json", "[" * 100_000, "nested too deeply"),
    ],
)
def test_other_files_are_refused(tmp_path, read, name, content, message):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read(tmp_path / name, images=4, captions=6)
    table = pa.table({"caption_id": [5], "image_id": [0], "probability": [float("nan")]})
    with pytest.raises(ValueError, match="have probability nan, but it lies between 0 and 1"):
        read_judgements(table, images=4, captions=6)
