"""Every layout in use gives the same images and captions."""

from __future__ import annotations

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.extras import load_splits
from aoq.pipeline.prepare.request import list_source
from aoq.pipeline.prepare.sources.records import Fields
from aoq.pipeline.prepare.splits import named_splits
from tests.prepare.conftest import encoded, picture, write_csv

NAMES = ["a.png", "b.png", "c.png"]
CAPTIONS = [["a one", "a two"], ["b one"], ["c one", "c two", "c three"]]
SPLITS = ["train", "dev", "train"]
FILES = {name: encoded(picture(seed)) for seed, name in enumerate(NAMES)}
ROWS = list(zip(NAMES, CAPTIONS, SPLITS, strict=True))
HELD = [{"bytes": content, "path": None} for content in FILES.values()]
BY_SPLIT = [0, 2, 1]
"""The images in the order of a source with a file per split."""


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def check(source, *, images=None, fields=None, splits=SPLITS, order=(0, 1, 2)):
    """The three images with their captions, in this order; splits by our names."""
    listing = list_source(str(source), images, fields)
    assert [listing.images.read(row) for row in range(len(listing))] == [FILES[NAMES[n]] for n in order]
    assert [sorted(filter(None, texts)) for texts in listing.captions.to_pylist()] == [
        sorted(CAPTIONS[n]) for n in order
    ]
    if splits is None:
        assert listing.splits is None
    else:
        assert named_splits(listing, "train").splits.to_pylist() == [splits[n] for n in order]
    assert len(set(listing.ids.to_pylist())) == 3
    return listing


def by_caption():
    """A row per caption, the images mixed."""
    rows = [[name, text, split] for name, texts, split in ROWS for text in texts]
    return [rows[i] for i in (0, 2, 1, 3, 4, 5)]


@pytest.mark.parametrize("separator", [",", "\t", "|"])
def test_a_table_of_texts_with_a_row_per_caption(folder, separator):
    lines = [separator.join(row) for row in [["filepath", "title", "split"], *by_caption()]]
    (folder / "table.csv").write_text("\ufeff" + "\n".join(lines))
    listing = check(folder / "table.csv")
    assert listing.captions.to_pylist() == CAPTIONS
    assert listing.kind == "a CSV table (images in filepath, captions in title)"
    assert listing.ids.to_pylist() == NAMES


def test_columns_that_the_user_names(folder):
    rows = [[*row, f"id {row[0]}"] for row in by_caption()]
    table = write_csv(folder / "t.csv", ["wo", "was", "wann", "wer"], rows)
    with pytest.raises(ValueError, match=r"no column is named like captions; the columns are wo, was, wann, wer"):
        list_source(str(table))
    with pytest.raises(ValueError, match=r"t.csv: no column is named like images"):
        list_source(str(table), None, Fields(captions=("was",)))
    listing = check(table, fields=Fields("wo", ("was",), "wer", "wann"))
    assert listing.ids.to_pylist() == [f"id {name}" for name in NAMES]


def test_a_caption_per_column_and_a_json_list_in_a_cell(folder):
    rows = [[name, *texts, *[""] * (3 - len(texts)), split] for name, texts, split in ROWS]
    check(write_csv(folder / "t.csv", ["image", "caption_0", "caption_1", "caption_2", "split"], rows))
    rows = [[json.dumps(texts), split, name] for name, texts, split in ROWS]
    check(write_csv(folder / "flickr_annotations.csv", ["raw", "split", "filename"], rows))


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("layout", ["list", "structs", "struct of lists"])
def test_lists_and_records_of_captions(folder, kind, layout):
    captions = {
        "list": CAPTIONS,
        "structs": [[{"raw": text, "sentid": n} for n, text in enumerate(texts)] for texts in CAPTIONS],
        "struct of lists": [{"raw": texts, "tokens": [[text] for text in texts]} for texts in CAPTIONS],
    }[layout]
    rows = [
        {"file_name": name, "sentences": texts, "split": split}
        for name, texts, split in zip(NAMES, captions, SPLITS, strict=True)
    ]
    source = folder / f"table.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        source.write_text(json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows)))
    check(source)


@pytest.mark.parametrize("images", [[*FILES.values()], HELD])
def test_parquet_files_that_hold_their_images(tmp_path, images):
    rows = pa.table({"image": images, "captions": CAPTIONS})
    (tmp_path / "data").mkdir()
    for name, at in (("train-00000-of-00002", 0), ("train-00001-of-00002", 2), ("validation-00000-of-00001", 1)):
        pq.write_table(rows.slice(at, 1), tmp_path / "data" / f"{name}.parquet")
    check(tmp_path, order=BY_SPLIT)


def test_karpathys_json_with_its_restval(folder):
    (folder / "val2014").mkdir()
    for name in NAMES:
        (folder / name).rename(folder / "val2014" / name)
    images = [
        {
            "filepath": "val2014",
            "filename": name,
            "split": split,
            "imgid": n,
            "sentences": [{"raw": text, "tokens": []} for text in texts],
        }
        for n, (name, texts, split) in enumerate(zip(NAMES, CAPTIONS, ["train", "val", "restval"], strict=True))
    ]
    source = folder / "dataset_coco.json"
    source.write_text(json.dumps({"images": images, "dataset": "coco"}))
    listing = check(source)
    assert named_splits(listing, "drop").splits.to_pylist() == ["train", "dev"]
    assert listing.kind.startswith("Karpathy's JSON")


def coco(*numbers):
    images = [{"id": 100 + n, "file_name": NAMES[n], "width": 1} for n in numbers]
    captions = [{"image_id": 100 + n, "id": n, "caption": text} for n in numbers for text in CAPTIONS[n]]
    return json.dumps({"images": images, "annotations": captions})


def test_cocos_captions_in_one_file_and_in_a_folder_of_files(folder):
    (folder / "captions.json").write_text(coco(0, 1, 2))
    check(folder / "captions.json", splits=None)
    for name, split in zip(NAMES, ("train2017", "val2017", "train2017"), strict=True):
        (folder / split).mkdir(exist_ok=True)
        (folder / name).rename(folder / split / name)
    (folder / "annotations").mkdir()
    (folder / "annotations" / "captions_train2017.json").write_text(coco(0, 2))
    (folder / "annotations" / "captions_val2017.json").write_text(coco(1))
    check(folder, order=BY_SPLIT)


@pytest.mark.parametrize("mapped", [False, True])
def test_files_of_ids_and_captions(folder, mapped):
    precomp = folder / "precomp"
    precomp.mkdir()
    ids = dict(zip(NAMES, "123" if mapped else NAMES, strict=True))
    for split in ("train", "dev"):
        rows = sorted(row for row in by_caption() if row[2] == split)
        (precomp / f"{split}_ids.txt").write_text("".join(f"{ids[row[0]]}\n" for row in rows))
        (precomp / f"{split}_caps.txt").write_text("".join(f"{row[1]}\n" for row in rows))
    if mapped:
        (precomp / "id_mapping.json").write_text(json.dumps({number: name for name, number in ids.items()}))
    check(precomp, images=folder, order=(1, 0, 2))


def shard(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_shards_of_webdataset(tmp_path):
    members = [("0/a.png", FILES["a.png"]), ("0/a.json", json.dumps({"captions": CAPTIONS[0]}).encode())]
    shard(tmp_path / "train-000.tar", [*members, ("0/lonely.png", FILES["a.png"])])
    shard(tmp_path / "val-000.tar", [("b.png", FILES["b.png"]), ("b.txt", b"b one"), ("b.cls", b"7")])
    members = [("c.json", json.dumps({"captions": CAPTIONS[2]}).encode()), ("c.png", FILES["c.png"])]
    shard(tmp_path / "train-001.tar", members)
    listing = check(tmp_path, order=BY_SPLIT)
    assert listing.ids.to_pylist() == ["0/a", "c", "b"]
    assert listing.images.describe(2).endswith("val-000.tar:b.png")


@pytest.fixture
def dataset():
    """The three images as a data set of Hugging Face."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "caption": [datasets.Value("string")]})
    return datasets.Dataset.from_dict({"image": HELD, "caption": CAPTIONS}, features=features)


def test_saved_hugging_face_data_sets(tmp_path, dataset):
    from datasets import DatasetDict

    layouts = {
        "splits": {"train": dataset.select([0, 2]), "validation": dataset.select([1])},
        "column": {"test": dataset.add_column("split", ["train", "val", "restval"])},
        "one": {"test": dataset},
    }
    for name, splits in layouts.items():
        DatasetDict(splits).save_to_disk(str(tmp_path / name))
    check(tmp_path / "splits", order=BY_SPLIT)
    check(tmp_path / "column")
    check(tmp_path / "one", splits=None)


def test_a_hub_that_is_not_reached_is_one_sentence(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def fails(name):
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub (LocalEntryNotFoundError)\nmore")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(ValueError, match=r"^some/set of the Hugging Face hub cannot be loaded \(.*\); .*save_to_disk"):
        list_source("hf:some/set")


def test_a_configuration_and_a_split_of_the_hub(monkeypatch, dataset):
    splits = {"train": dataset.select([0, 2]), "test": dataset.select([1])}
    monkeypatch.setattr("datasets.load_dataset", lambda *name: {("some/set", "large"): splits}[name])
    load_splits.cache_clear()
    both, one = (list_source(f"hf:some/set/large{split}") for split in ("", "@test"))
    assert both.splits.to_pylist() == ["train", "train", "test"]
    assert one.splits is None
    assert one.images.read(0) == FILES["b.png"]
    with pytest.raises(ValueError, match=r"some/set/large of .* has no split 'dev'; its splits are \['test', 't"):
        list_source("hf:some/set/large@dev")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", "{", "damaged"),
        ("a.json", '{"images": [{"filename": "a"}]}', "no column is named like captions"),
        ("a.json", '{"images": 3}', "Karpathy"),
        ("a.json", "[1]", "list of records"),
        ("a.json", '{"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}', "image 1, which is not listed"),
        ("a.csv", "image,caption\na.png,\xff", "damaged|UTF|image"),
        ("a.csv", "", "damaged"),
        ("a.csv", "image,image\na,b\n", "no column is named like captions"),
        ("a.jsonl", '{"image": "a", "caption": "b"}\n{"image": tru', "line 2"),
        ("a.jsonl", '{"image": ["a"], "caption": "b"}', "one text or number a row"),
        ("a.jsonl", '{"image": "a", "caption": {"b": 1}}', "records of b"),
        ("a.parquet", "PAR1", "damaged"),
        ("a.tar", "nothing", "tar archive"),
        ("a.tar", "", "tar archive"),
        ("a.doc", "", "in a known layout"),
        ("", "", r"is no folder|in a known layout"),
    ],
)
def test_a_damaged_source_is_one_sentence_that_names_it(tmp_path, name, content, reason):
    source = tmp_path / name
    if name:
        source.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=reason) as refusal:
        list_source(str(source))
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_source(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"does not exist; .*hf:OWNER/NAME"):
        list_source(str(tmp_path / "nothing"))
