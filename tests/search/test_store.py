"""Both stores give back what was written, whole or a range of it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from aoq.pipeline.search import store as stores
from aoq.pipeline.search.store import Folder, Memory, Store


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path, monkeypatch) -> Store:
    monkeypatch.setattr(stores, "GROUP_ROWS", 4)
    return Folder(tmp_path) if request.param == "folder" else Memory()


def test_tables_come_back_whole_and_in_part(store):
    table = pa.table({"caption": np.array([0, 0, 2, 2, 2, 5, 9], np.int32), "score": np.arange(7, dtype=np.float32)})
    store.write("kept-0", table)
    assert store.has("kept-0")
    assert not store.has("kept-1")
    assert store.read("kept-0") == table
    for start in range(11):
        for stop in range(start, 11):
            inside = [caption for caption in table["caption"].to_pylist() if start <= caption < stop]
            found = store.read("kept-0", within=("caption", start, stop))
            assert found["caption"].to_pylist() == inside
            assert found.schema == table.schema


def test_names_are_listed_by_what_they_start_with(store):
    for name in ("t2i-1", "i2t-1", "i2t-0"):
        store.write(name, pa.table({"score": [1.0]}))
    assert store.names("i2t-") == ["i2t-0", "i2t-1"]


def test_a_later_table_takes_the_place_of_the_first(store):
    for value in (1.0, 2.0):
        store.write("limits", pa.table({"limit": [value]}))
    assert store.read("limits")["limit"].to_pylist() == [2.0]
