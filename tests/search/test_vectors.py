"""Vectors and ids of every kind of file: the rows that were written, whatever the format."""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from safetensors.numpy import save_file

from aoq.pipeline.extras import load_splits
from aoq.pipeline.tables.pairs import read_id_file
from aoq.pipeline.vector_files import VectorFile
from aoq.pipeline.vectors import open_vectors

ROWS, SIZE = 23, 5
IDS = [f"item {row}" for row in range(ROWS)]


@pytest.fixture
def vectors():
    return np.random.default_rng(0).normal(size=(ROWS, SIZE)).astype(np.float32)


def table_of(vectors, *, is_fixed=True):
    kind = pa.list_(pa.float32(), SIZE) if is_fixed else pa.list_(pa.float32())
    lists = pa.array(vectors.tolist(), kind)
    return pa.table({"name": IDS, "vector": lists, "number": [2 * row for row in range(ROWS)], "same": ["a"] * ROWS})


def write_arrow(path, table, kind=pa.ipc.new_file):
    with pa.OSFile(str(path), "wb") as sink, kind(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=9)


def write_saved(path, table):
    """A data set in two files, of rows that lie in another order on disk."""
    datasets = pytest.importorskip("datasets")
    order = np.random.default_rng(1).permutation(len(table))
    shuffled = datasets.Dataset(table.take(pa.array(order)))
    shuffled.select(np.argsort(order).tolist()).save_to_disk(str(path), num_shards=2)


def write_parts(path, vectors):
    """Parts as clip-retrieval writes them: emb_0.npy to emb_11.npy."""
    path.mkdir()
    for number, rows in enumerate(np.array_split(vectors, 12)):
        np.save(path / f"emb_{number}.npy", rows)


WRITERS = {
    "parts": write_parts,
    "v.npy": np.save,
    "v.npz": lambda path, vectors: np.savez_compressed(path, vector=vectors),
    "v.safetensors": lambda path, vectors: save_file({"vector": vectors}, path),
    "v.parquet": lambda path, table: pq.write_table(table, path, row_group_size=7),
    "v.feather": lambda path, table: feather.write_feather(table, path, chunksize=6),
    "v.arrow": write_arrow,
    "stream.arrow": partial(write_arrow, kind=pa.ipc.new_stream),
    "saved": write_saved,
}
COLUMNED = [*WRITERS][4:]


def written(name, folder, given):
    """Write vectors, or a table of columns; return the path."""
    if name in COLUMNED and not isinstance(given, pa.Table):
        given = table_of(given, is_fixed=name not in ("v.feather", "saved"))
    WRITERS[name](folder / name, given)
    return folder / name


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("normalise", [False, True])
def test_rows_are_those_that_were_written(name, normalise, vectors, tmp_path):
    path = written(name, tmp_path, vectors)
    expected = vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True) if normalise else vectors
    found = open_vectors(str(path), tmp_path / "copy.npy", normalise=normalise).rows
    np.testing.assert_array_equal(found, expected.astype(np.float32))


def test_tensors_of_bfloat16_are_read_as_they_are(vectors, tmp_path):
    rounded = torch.from_numpy(vectors).bfloat16()
    safetensors.torch.save_file({"vector": rounded}, tmp_path / "v.safetensors")
    found = open_vectors(str(tmp_path / "v.safetensors"), tmp_path / "copy.npy", normalise=False).rows
    np.testing.assert_array_equal(found, rounded.float().numpy())


@pytest.mark.parametrize("name", ["v.arrow", "v.parquet"])
def test_tensors_of_one_dimension_are_vectors(name, vectors, tmp_path):
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(vectors)
    path = written(name, tmp_path, pa.table({"vector": tensors}))
    np.testing.assert_array_equal(open_vectors(str(path), tmp_path / "c.npy", normalise=False).rows, vectors)


def categories(values, kind):
    return pa.DictionaryArray.from_arrays(pa.array(values), pa.array(["a", "b"], pa.large_string()).cast(kind))


@pytest.mark.parametrize("name", ["v.arrow", "stream.arrow", "v.feather", "v.parquet"])
def test_ids_are_texts_of_any_kind(name, tmp_path):
    """Polars writes views, and Categorical and Enum as dictionaries, in Arrow files of views."""
    kinds = [pa.string_view(), pa.large_string()]
    columns = {
        **{str(kind): pa.array(["b", "a", "b"], pa.large_string()).cast(kind) for kind in kinds},
        **{f"{kind} dictionary": categories([1, 0, 1], kind) for kind in kinds},
        "lacking": categories([1, None, 0], pa.string()),
        "scores": pa.array([0.5, 0.25, 0.5]).dictionary_encode(),
    }
    if name == "v.parquet":  # pyarrow writes none of these
        del columns["string_view dictionary"]
    path = written(name, tmp_path, pa.table(columns))
    for column in [*columns][:-2]:
        assert read_id_file(f"{path}::{column}") == ["b", "a", "b"]
    with pytest.raises(ValueError, match="row 1 has no id in column 'lacking'"):
        read_id_file(f"{path}::lacking")
    with pytest.raises(ValueError, match="holds double of shape"):
        open_vectors(f"{path}::scores", tmp_path / "copy.npy", normalise=False)


@pytest.mark.parametrize("name", COLUMNED)
def test_ids_are_a_column_of_the_file(name, vectors, tmp_path):
    path = written(name, tmp_path, vectors)
    np.testing.assert_array_equal(open_vectors(f"{path}::vector", tmp_path / "c.npy", normalise=False).rows, vectors)
    assert read_id_file(f"{path}::name") == IDS
    assert read_id_file(f"{path}::number") == [str(2 * row) for row in range(ROWS)]


@pytest.mark.parametrize("column", ["nothing", "vector", ""])
@pytest.mark.parametrize("name", ["v.parquet", "stream.arrow", "saved"])
def test_what_are_no_ids_are_refused(name, column, vectors, tmp_path):
    with pytest.raises(ValueError, match=r"v\.npy::name names no column of ids; those of .* are \[\]"):
        read_id_file(f"{written('v.npy', tmp_path, vectors)}::name")
    given = f"::{column}" if column else "[^:]"
    message = given + r" names no column of ids; those of texts or whole numbers are \['name', 'number', 'same'\]"
    with pytest.raises(ValueError, match=message):
        read_id_file(f"{written(name, tmp_path, vectors)}::{column}")


@pytest.mark.parametrize("name", COLUMNED)
def test_a_missing_id_or_vector_is_refused(name, tmp_path):
    table = pa.table({"id": ["a", None], "vector": pa.array([[1.0, 2.0], None], pa.list_(pa.float32()))})
    path = written(name, tmp_path, table)
    with pytest.raises(ValueError, match="row 1 has no id in column 'id'"):
        read_id_file(f"{path}::id")
    with pytest.raises(ValueError, match=r"column 'vector' must all have . numbers; that of row 1 does"):
        open_vectors(str(path), tmp_path / "copy.npy", normalise=False)


@pytest.mark.parametrize("name", ["v.parquet", "v.arrow", "stream.arrow"])
def test_two_columns_of_one_name_are_refused_and_none_too(name, vectors, tmp_path):
    table = table_of(vectors)
    for columns in (table.append_column("vector", table["vector"]), table.select([]))[: 1 + (name == "v.parquet")]:
        with pytest.raises(ValueError, match=rf"{name} has the columns .*; give each column"):
            VectorFile.of(str(written(name, tmp_path, columns))).open()


@pytest.mark.parametrize("name", ["v.arrow", "stream.arrow", "v.feather", "saved"])
def test_a_file_that_was_cut_short_is_one_sentence(name, vectors, tmp_path):
    path = written(name, tmp_path, vectors)
    file = path if path.is_file() else sorted(path.glob("*.arrow"))[0]
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"is damaged or not an Arrow file"):
        open_vectors(str(path), tmp_path / "copy.npy", normalise=False)


def test_a_data_sets_hash_is_of_its_files(vectors, tmp_path):
    path = written("saved", tmp_path, vectors)
    before = VectorFile.of(str(path)).sha256
    (path / "dataset_info.json").write_text("{}")
    assert VectorFile.of(str(path)).sha256 == before
    shard = sorted(path.glob("*.arrow"))[1]
    shard.write_bytes(shard.read_bytes() + b"\0")
    assert VectorFile.of(str(path)).sha256 != before


def test_splits_are_chosen_by_their_folder(vectors, tmp_path):
    datasets = pytest.importorskip("datasets")
    found = datasets.DatasetDict({"train": datasets.Dataset(table_of(vectors))})
    found.save_to_disk(str(tmp_path / "all"))
    with pytest.raises(ValueError, match=r"all holds a data set's splits, \['train'\]; name one: \S+all/SPLIT::COLUMN"):
        VectorFile.of(str(tmp_path / "all"))
    assert VectorFile.of(f"{tmp_path / 'all' / 'train'}::vector").open().shape == (ROWS, SIZE)


def test_parts_of_other_sizes_are_refused_and_ids_lie_in_parts_too(vectors, tmp_path):
    path = written("parts", tmp_path, vectors)
    np.save(path / "emb_12.npy", vectors[:2, :3])
    with pytest.raises(ValueError, match=r"emb_12\.npy and \S+emb_0\.npy have other columns, types or dimensions"):
        VectorFile.of(str(path)).open()
    (tmp_path / "ids").mkdir()
    for number, rows in enumerate(np.array_split(np.arange(ROWS), 3)):
        columns = {"name": [IDS[row] for row in rows], "error": [None if number else "slow"] * len(rows)}
        pq.write_table(pa.table(columns), tmp_path / "ids" / f"metadata_{number}.parquet")
    assert read_id_file(f"{tmp_path / 'ids'}::name") == IDS


@pytest.mark.parametrize("state", ["{}", '{"_data_files": []}', '{"_data_files": [{"filename": "../v.arrow"}]}'])
def test_a_state_that_names_no_files_is_refused(state, vectors, tmp_path):
    written("v.arrow", tmp_path, vectors)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text(state)
    with pytest.raises(ValueError, match=r"save the data set again"):
        VectorFile.of(str(tmp_path / "saved")).open()


def test_what_is_no_file_of_vectors_is_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    for given in (tmp_path / "folder", tmp_path / "v.txt"):
        with pytest.raises(ValueError, match=r"is none of \.npy, .* no folder of such files of one kind"):
            VectorFile.of(str(given))
    with pytest.raises(FileNotFoundError, match=r"v\.npy does not exist"):
        VectorFile.of(str(tmp_path / "absent" / "v.npy"))


def test_one_of_several_columns_or_tensors_is_named(vectors, tmp_path):
    table = table_of(vectors)
    feather.write_feather(table.append_column("other", table["vector"]), tmp_path / "v.feather")
    np.savez(tmp_path / "v.npz", vector=vectors, other=vectors)
    for name in ("v.feather", "v.npz"):
        with pytest.raises(ValueError, match=r"2 parts of vectors, \['vector', 'other'\]; name one: \S+::NAME"):
            VectorFile.of(str(tmp_path / name)).open()
        assert VectorFile.of(f"{tmp_path / name}::other").open().shape == (ROWS, SIZE)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """`datasets.load_dataset`, which finds on this disk what was put there by name, with a configuration or without."""
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*name):
        asked.append("/".join(name))
        if not (folder := tmp_path / "hub" / Path(*name)).is_dir():
            raise ConnectionError(f"Couldn't reach '{name[0]}' on the Hub (LocalEntryNotFoundError)\nmore")
        return datasets.load_from_disk(str(folder))

    def put(name, **splits):
        found = {split: datasets.Dataset(table) for split, table in splits.items()}
        datasets.DatasetDict(found).save_to_disk(str(tmp_path / "hub" / name))
        return asked

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    load_splits.cache_clear()
    yield put
    load_splits.cache_clear()


@pytest.mark.parametrize("is_fixed", [True, False])
@pytest.mark.parametrize(("name", "given"), [("some/set", "hf:some/set"), ("some/set/clip", "hf:some/set/clip@train")])
def test_a_column_of_the_hub_is_read_as_one_of_a_file(hub, vectors, tmp_path, is_fixed, name, given, monkeypatch):
    monkeypatch.setattr("aoq.pipeline.vector_files.READ_ROWS", 7)
    asked = hub(name, train=table_of(vectors, is_fixed=is_fixed))
    for part in ("::vector", ""):
        found = open_vectors(f"{given}{part}", tmp_path / "copy.npy", normalise=False).rows
        np.testing.assert_array_equal(found, vectors)
    assert read_id_file(f"{given}::name") == IDS
    assert asked == [name]  # once, whoever asks


def test_arrays_of_two_dimensions_are_no_vectors(hub, vectors, tmp_path):
    datasets = pytest.importorskip("datasets")
    squares = datasets.Array2D((2, 2), "float32")
    found = datasets.Dataset.from_dict({"square": [np.ones((2, 2))] * ROWS}, datasets.Features(square=squares))
    hub("some/set", train=table_of(vectors).append_column("square", found.data["square"].combine_chunks()))
    np.testing.assert_array_equal(open_vectors("hf:some/set", tmp_path / "copy.npy", normalise=False).rows, vectors)


def test_the_hash_of_a_column_of_the_hub_is_of_its_vectors_alone(hub, vectors):
    """The hash covers shape and bytes; other columns and the division into files do not change it."""
    hub("some/set", train=table_of(vectors))
    hub("other/set", train=table_of(vectors, is_fixed=False).drop_columns("name"), test=table_of(vectors[::-1].copy()))
    by_definition = hashlib.sha256(f"{ROWS} {SIZE}\0".encode() + vectors.tobytes()).hexdigest()
    assert VectorFile.of("hf:some/set::vector").sha256 == by_definition
    assert VectorFile.of("hf:other/set@train::vector").sha256 == by_definition
    assert VectorFile.of("hf:other/set@test::vector").sha256 != by_definition


HUB = "hf:some/set"


def ragged(*lengths):
    return pa.table({"vector": pa.array([[1.0] * length for length in lengths], pa.list_(pa.float32()))})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("hf:no/set::vector", r"^no/set of the Hugging Face hub cannot be loaded \(Couldn't .*\); .*save_to_disk"),
        (
            "hf:some/set::vectors",
            rf"{HUB} has no part 'vectors'; those with a row of floats per item are \['vector'\]\.",
        ),
        ("hf:some/set::name", rf"{HUB} holds string of shape \(23,\) in 'name'; a row of floats per item is needed"),
        ("hf:some/set@dev::vector", r"some/set of the Hugging Face hub has no split 'dev'; its splits are \['train'\]"),
        ("hf:two/splits::vector", r"hf:two/splits has the splits \['dev', 'train'\]; name one: hf:two/splits@SPLIT::C"),
        ("hf:ragged/set::vector", r"hf:ragged/set: the lists of column 'vector' must all have 3 numbers"),
        ("hf:ragged/later::vector", r"vectors have 3 dimensions, and from row 2 on 4; all need the same"),
    ],
)
def test_what_the_hub_has_not_is_one_sentence(hub, vectors, tmp_path, given, said, monkeypatch):
    monkeypatch.setattr("aoq.pipeline.vector_files.READ_ROWS", 2)
    hub("some/set", train=table_of(vectors))
    hub("two/splits", train=table_of(vectors), dev=table_of(vectors))
    hub("ragged/set", train=ragged(3, 4))
    hub("ragged/later", train=ragged(3, 3, 4, 4))
    with pytest.raises(ValueError, match=said) as error:
        open_vectors(given, tmp_path / "copy.npy", normalise=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "copy.npy").exists()
