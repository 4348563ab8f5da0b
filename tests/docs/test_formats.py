"""The pages on formats name every file, column and key that is written."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.data.annotations import ANNOTATION_COLUMNS as ANNOTATIONS
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.data.folder import OPTIONAL, REQUIRED, open_split
from aoq.pipeline.data.noise import CLEAN_PAIR_COLUMNS as CLEAN_PAIRS
from aoq.pipeline.prepare.photographs import PACKED
from aoq.pipeline.tables.files import LISTS, About
from tests.cli.conftest import run, write_files

PAGES = Path(__file__).parent.parent.parent / "docs" / "formats"
DATASET, TABLE = ((PAGES / f"{name}.md").read_text(encoding="utf-8") for name in ("dataset", "table"))


def rows(page: str) -> dict[str, str]:
    """Map the names in each row's first cell to its second cell."""
    pairs = re.findall(r"^\| (`.*?`) \| (.*?) \|", page, re.MULTILINE)
    return {name: cell for names, cell in pairs for name in re.findall(r"`([^`]+)`", names)}


def type_name(kind: pa.DataType) -> str:
    if pa.types.is_fixed_size_list(kind):
        return f"`fixed_size_list<{type_name(kind.value_type)}>[h]`"
    return {"float": "float32", "double": "float64"}.get(str(kind), str(kind))


def section(page: str, title: str) -> dict[str, str]:
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return rows(text)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Tables of two sides and of one set with ids, a view and batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root := tmp_path_factory.mktemp("formats"))
        write_files()
        run("screen", "corpus", "view", "--mutual-rank", 2)
        run("batches", "corpus", "epochs", "--batch-size", 2)
    return root


@pytest.mark.parametrize(
    ("file", "title"),
    [
        ("corpus/i2t.parquet", "The lists"),
        ("corpus/t2i.parquet", "The lists"),
        ("corpus/positives.parquet", "The positives"),
        ("corpus/images.parquet", "The ids"),
        ("corpus/captions.parquet", "The ids"),
        ("set/items.parquet", "The ids"),
        ("corpus/i2t.certificates.parquet", "The certificates"),
        ("view/i2t.parquet", "A view"),
        ("epochs/epoch-000.parquet", "Batches"),
    ],
)
def test_each_column_of_a_table_is_described_with_its_type(folder, file, title):
    described = section(TABLE, title)
    for column in pq.read_schema(folder / file):
        assert described[column.name] == type_name(column.type)
    assert f"`{Path(file).name}`" in TABLE


def test_each_file_of_a_table_is_named_and_every_described_column_of_the_lists_exists(folder):
    assert section(TABLE, "The lists").keys() == set(LISTS.names)
    for name in ("corpus", "set", "view"):
        for path in (folder / name).iterdir():
            assert f"`{path.name}`" in TABLE, path.name


def test_each_key_of_a_manifest_is_described(folder):
    described = section(TABLE, "The manifest")
    for name in ("corpus", "set"):
        manifest = json.loads((folder / name / "manifest.json").read_text())
        assert manifest.keys() <= described.keys()
        for about in manifest["directions"].values():
            assert about.keys() <= described.keys()
    assert About.__annotations__.keys() <= described.keys()
    view = json.loads((folder / "view" / "manifest.json").read_text())
    assert all(f"`{key}`" in TABLE for key in view)


def test_each_file_of_a_dataset_folder_is_described(tmp_path):
    described = rows(DATASET)
    assert {f"{{split}}_{suffix}" for suffix in (*REQUIRED, *OPTIONAL)} <= described.keys()
    write_demo_world(tmp_path, images=10, dev_images=10, seed=0)
    for path in tmp_path.iterdir():
        assert re.sub("^(train|dev)", "{split}", path.name) in described, path.name
    split = open_split(tmp_path, "train")
    assert str(split.features.dtype) in described["{split}_ims.npy"]
    assert split.features.ndim == 3


@pytest.mark.parametrize(
    ("title", "schema"),
    [
        ("From photographs", PACKED),
        ("For evaluation", ANNOTATIONS["relevance"]),
        ("For evaluation", ANNOTATIONS["judgements"]),
        ("Noisy pairs", CLEAN_PAIRS),
    ],
)
def test_each_column_beside_a_dataset_is_described_with_its_type(title, schema):
    described = section(DATASET, title)
    for column in schema:
        assert described[column.name] == type_name(column.type)
