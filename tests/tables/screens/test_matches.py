"""Pairs known to match, from the three kinds of files."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.tables.screens.matches import read_matches


def test_all_kinds_give_the_same_pairs(tmp_path):
    table = pa.table({"caption_id": [5, 2, 5], "image_id": [0, 1, 3]})
    pq.write_table(table, tmp_path / "m.parquet")
    (tmp_path / "m.csv").write_text("image_id,caption_id,note\n0,5,x\n1,2,y\n3,5,z\n")
    (tmp_path / "m.json").write_text('{"5": [0, 3], "2": [1]}')
    for suffix in (".parquet", ".csv", ".json"):
        assert read_matches(tmp_path / f"m{suffix}", images=4, captions=6).tolist() == [[0, 5], [1, 2], [3, 5]]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.txt", "0 5", "one of .parquet, .csv, .json"),
        ("m.csv", "image,caption\n0,5\n", "caption_id"),
        ("m.csv", "caption_id,image_id\n5,zero\n", "column 'image_id' is of string, and int64 is needed"),
        ("m.csv", "caption_id,image_id\n5,\n4,1\n", "1 values of column 'image_id' are empty"),
        ("m.csv", "caption_id,image_id\n6,0\n", "pair 0 has caption 6, and there are captions 0 to 5"),
        ("m.csv", "caption_id,image_id\n5,-1\n", "pair 0 has image -1"),
        ("m.json", "[1, 2]", "is damaged or not pairs known to match"),
        ("m.json", '{"a": [1]}', "is damaged or not pairs known to match"),
        ("m.json", '{"5": [1e999]}', "is damaged or not pairs known to match"),
        ("m.json", '{"5": [99999999999999999999]}', "is damaged or not pairs known to match"),
        ("m.json", '{"5": [4294967296]}', "pair 0 has image 4294967296, and there are images 0 to 3"),
        ("m.json", '{"5": [0.5]}', "5.0: input should be a valid integer"),
        ("m.json", "[" * 100_000, "nested too deeply"),
        ("m.parquet", "no parquet", "is damaged or not pairs known to match"),
    ],
)
def test_others_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_matches(tmp_path / name, images=4, captions=6)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"m\.csv does not exist"):
        read_matches(tmp_path / "m.csv", images=4, captions=6)
