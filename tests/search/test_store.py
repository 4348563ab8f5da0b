"""Both stores give back what was written."""

from __future__ import annotations

import pyarrow as pa
import pytest

from aoq.pipeline.search.store import Folder, Memory, Store


@pytest.fixture(params=["folder", "memory"])
def store(request, tmp_path) -> Store:
    return Folder(tmp_path) if request.param == "folder" else Memory()


def test_tables_come_back(store):
    table = pa.table({"limit": [0.5, 0.25], "keys": [[3, 1], []]})
    store.write("kept-0", table)
    assert store.has("kept-0")
    assert not store.has("kept-1")
    assert store.read("kept-0") == table


def test_names_are_listed_by_what_they_start_with(store):
    for name in ("t2i-1", "i2t-1", "i2t-0"):
        store.write(name, pa.table({"score": [1.0]}))
    assert store.names("i2t-") == ["i2t-0", "i2t-1"]


def test_a_later_table_takes_the_place_of_the_first(store):
    for value in (1.0, 2.0):
        store.write("limits", pa.table({"limit": [value]}))
    assert store.read("limits")["limit"].to_pylist() == [2.0]


def test_a_table_of_a_folder_is_read_only_as_it_was_written(tmp_path, caplog):
    written = Folder(tmp_path, "one search")
    for name in ("i2t-0", "i2t-1"):
        written.write(name, pa.table({"score": [1.0, 2.0]}))
    path = tmp_path / "i2t-0.unit"
    whole = path.read_bytes()
    damages = [whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :] for place in range(len(whole))]
    for content in (*damages, whole[:-1], whole[:9], b"", whole + b"0", (tmp_path / "i2t-1.unit").read_bytes()):
        path.write_bytes(content)
        assert not written.has("i2t-0")
        with pytest.raises(ValueError, match=r"i2t-0.unit was lost or damaged after it was written; run again"):
            written.read("i2t-0")
    path.write_bytes(whole)
    assert written.has("i2t-0")
    assert written.names("i2t") == ["i2t-0", "i2t-1"]
    other = Folder(tmp_path, "another search")
    assert not other.has("i2t-0")
    assert other.names("i2t") == []
    assert "i2t-0.unit is damaged or belongs to another search; making it again" in caplog.text
