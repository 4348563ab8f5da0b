"""Parquet files are read in the kinds that are needed, or refused in one sentence."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.columns import open_parquet, read_parquet

KINDS = pa.schema({"row": pa.int32(), "ids": pa.list_(pa.int32()), "scores": pa.list_(pa.float32())})


def lists(values, kind):
    return pa.FixedSizeListArray.from_arrays(pa.array(values, kind), 2)


def table(**columns):
    whole = {"row": pa.array([0, 1]), "ids": lists([1, 2, 3, 4], pa.int64()), "scores": lists([1, None, 0, 0], "float")}
    return pa.table({**whole, **columns})


def read(path):
    return read_parquet(path, KINDS, nullable=["scores"], remedy="make it again")


def test_kinds_that_fit_are_cast(tmp_path):
    pq.write_table(table(), tmp_path / "t.parquet")
    found = read(tmp_path / "t.parquet")
    assert found.schema.types == [pa.int32(), pa.list_(pa.int32(), 2), pa.list_(pa.float32(), 2)]
    assert found["ids"].to_pylist() == [[1, 2], [3, 4]]
    with open_parquet(tmp_path / "t.parquet", KINDS, nullable=["scores"]) as file:
        assert [batch["row"].to_pylist() for batch in file.batches(1)] == [[0], [1]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"row": pa.array([2**32, 1])}, r"not in range"),
        ({"row": pa.array([0.0, 1.0])}, r"column 'row' is of double, and int32 is needed"),
        ({"row": pa.array([True, False])}, r"column 'row' is of bool"),
        ({"row": pa.array([0, None])}, r"1 values of column 'row' are empty"),
        ({"ids": lists([1, 2**31, 3, 4], pa.int64())}, r"not in range"),
        ({"ids": lists([1, None, 3, 4], pa.int64())}, r"1 values of column 'ids' are empty"),
        ({"ids": pa.array([[1], [2, 3]])}, r"column 'ids' is of list<.*>, and list<.*> is needed"),
        ({"scores": lists([1.0, 2.0, 3.0, 4.0], pa.float64())}, r"column 'scores' is of fixed_size_list<.*double>"),
        ({"scores": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))}, r"1 values of column 'scores' are empty"),
    ],
)
def test_kinds_that_do_not_fit_are_refused(tmp_path, columns, message):
    pq.write_table(table(**columns), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=rf"t.parquet is damaged or not a Parquet file .*{message}.*; make it again"):
        read(tmp_path / "t.parquet")


def test_lacking_and_doubled_columns_are_refused(tmp_path):
    for other in (table().drop_columns(["ids"]), table().append_column("ids", table()["ids"])):
        pq.write_table(other, tmp_path / "t.parquet")
        with pytest.raises(ValueError, match=r"'ids' must be one of them"):
            read(tmp_path / "t.parquet")


def test_a_flipped_byte_of_a_page_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(table(), path, compression="none", use_dictionary=False, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[content.index((3).to_bytes(8, "little") + (4).to_bytes(8, "little"))] = 5
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged"):
        read(path)
