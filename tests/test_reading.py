"""A file that cannot be read, or has other columns, ends in one sentence, which calls it damaged only if it is."""

import errno
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.columns import open_parquet, read_parquet
from aoq.pipeline.reading import parse_json, read_arrays, reading


@pytest.fixture
def file(tmp_path):
    (path := tmp_path / "file").write_bytes(b"whole")
    return path


@pytest.mark.parametrize(
    "error",
    [*(OSError(number, os.strerror(number)) for number in (errno.EMFILE, errno.EIO, errno.ESTALE)), MemoryError()],
    ids=repr,
)
def test_a_file_is_not_damaged_because_the_machine_cannot_read_it_now(file, error):
    number = getattr(error, "errno", errno.ENOMEM)
    with (
        pytest.raises(OSError, match=rf"^\[Errno {number}\] {os.strerror(number)}: '{file}'$"),
        reading(file, "a word"),
    ):
        raise error


@pytest.mark.parametrize(
    "error", [pa.ArrowInvalid("cut"), OSError("cut"), OSError(errno.EINVAL, "cut"), EOFError("cut")]
)
def test_what_parsers_raise_is_damage(file, error):
    said = r"file is damaged or not a word \(.*cut\); write it again\."
    with pytest.raises(ValueError, match=said), reading(file, "a word", "write it again"):
        raise error


def test_an_archive_that_leads_before_its_start_is_damaged(tmp_path):
    np.savez(path := tmp_path / "file.npz", rows=np.arange(9))
    content = bytearray(path.read_bytes())
    content[-3] = 255  # where the directory starts
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"file\.npz is damaged or not"):
        read_arrays(path, "rows")


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '[{"b": {"a": 1, "a": 2}}]'])
def test_no_key_is_there_twice(text):
    with pytest.raises(ValueError, match="an object has the key 'a' twice"):
        parse_json(text, object)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_no_json(number):
    with pytest.raises(ValueError, match=f"the number {number} is not finite"):
        parse_json(f'{{"score": [{number}]}}', dict)


KINDS = pa.schema({"row": pa.int32(), "ids": pa.list_(pa.int32()), "scores": pa.list_(pa.float32())})


def lists(values, kind):
    return pa.FixedSizeListArray.from_arrays(pa.array(values, kind), 2)


def table(**columns):
    whole = {"row": pa.array([0, 1]), "ids": lists([1, 2, 3, 4], pa.int64()), "scores": lists([1, None, 0, 0], "float")}
    return pa.table({**whole, **columns})


def read(path):
    return read_parquet(path, KINDS, nullable=["scores"], remedy="make it again")


def test_kinds_that_fit_are_cast(tmp_path):
    pq.write_table(table(row=pa.array([0.0, 1.0])), tmp_path / "t.parquet")  # pandas makes floats of a column with gaps
    found = read(tmp_path / "t.parquet")
    assert found.schema.types == [pa.int32(), pa.list_(pa.int32(), 2), pa.list_(pa.float32(), 2)]
    assert found["ids"].to_pylist() == [[1, 2], [3, 4]]
    with open_parquet(tmp_path / "t.parquet", KINDS, nullable=["scores"]) as file:
        assert [batch["row"].to_pylist() for batch in file.batches(1)] == [[0], [1]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"row": pa.array([2**32, 1])}, r"not in range"),
        ({"row": pa.array([0.5, 1.0])}, r"Float value 0\.50* was truncated converting to int32"),
        ({"row": pa.array([True, False])}, r"column 'row' has type bool, and int32 is needed"),
        ({"row": pa.array([0, None])}, r"1 values of column 'row' are empty"),
        ({"ids": lists([1, None, 3, 4], pa.int64())}, r"1 values of column 'ids' are empty"),
        ({"ids": pa.array([[1], [2, 3]])}, r"column 'ids' has type list<.*>, and list<.*> is needed"),
        ({"scores": lists([1.0, 2.0, 3.0, 4.0], pa.float64())}, r"'scores' has type fixed_size_list<.*double>"),
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
        with pytest.raises(ValueError, match=r"it needs one column 'ids'"):
            read(tmp_path / "t.parquet")
