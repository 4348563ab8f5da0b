"""Every layout that people have gives the same images and captions."""

from __future__ import annotations

import io
import json
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.hub import load_splits
from aoq.pipeline.prepare.request import list_source
from aoq.pipeline.prepare.sources.records import Fields
from aoq.pipeline.prepare.splits import named_splits
from tests.prepare.conftest import encoded, picture, write_csv

NAMES = ["a.png", "b.png", "c.png"]
CAPTIONS = [["a one", "a two"], ["b one"], ["c one", "c two", "c three"]]
SPLITS = ["train", "dev", "train"]
FILES = {name: encoded(picture(seed)) for seed, name in enumerate(NAMES)}


@pytest.fixture
def folder(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def check(source, *, images=None, columns=None, splits=SPLITS):
    """The three images with their captions, in this order; splits by our names."""
    listing = list_source(str(source), images, columns or Fields())
    assert [listing.images.read(row) for row in range(len(listing))] == list(FILES.values())
    assert listing.captions.to_pylist() == CAPTIONS
    if splits is None:
        assert listing.splits is None
    else:
        assert named_splits(listing, "train").splits.to_pylist() == splits
    assert len(set(listing.ids.to_pylist())) == 3
    return listing


def by_caption():
    """A row a caption, the images mixed."""
    rows = [[name, text, split] for name, texts, split in zip(NAMES, CAPTIONS, SPLITS, strict=True) for text in texts]
    return [rows[i] for i in (0, 2, 1, 3, 4, 5)]


@pytest.mark.parametrize("separator", [",", "\t", "|"])
def test_a_table_of_texts_with_a_row_a_caption(folder, separator):
    lines = [separator.join(row) for row in [["filepath", "title", "split"], *by_caption()]]
    (folder / "table.csv").write_text("\ufeff" + "\n".join(lines))
    listing = check(folder / "table.csv")
    assert listing.kind == "a CSV table (images in filepath, captions in title)"
    assert listing.ids.to_pylist() == NAMES


def test_columns_that_the_user_names(folder):
    rows = [[*row, f"id {row[0]}"] for row in by_caption()]
    table = write_csv(folder / "t.csv", ["wo", "was", "wann", "wer"], rows)
    with pytest.raises(ValueError, match=r"no column is named like captions; the columns are wo, was, wann, wer"):
        list_source(str(table))
    with pytest.raises(ValueError, match=r"no column is named like images"):
        list_source(str(table), None, Fields(captions=("was",)))
    listing = check(table, columns=Fields("wo", ("was",), "wer", "wann"))
    assert listing.ids.to_pylist() == [f"id {name}" for name in NAMES]


def test_captions_as_a_json_list_in_a_cell(folder):
    rows = [[json.dumps(texts), split, name] for name, texts, split in zip(NAMES, CAPTIONS, SPLITS, strict=True)]
    check(write_csv(folder / "flickr_annotations.csv", ["raw", "split", "filename"], rows))


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize("layout", ["list", "structs", "struct of lists"])
def test_lists_and_records_of_captions(folder, kind, layout):
    given = {
        "list": CAPTIONS,
        "structs": [[{"raw": text, "sentid": n} for n, text in enumerate(texts)] for texts in CAPTIONS],
        "struct of lists": [{"raw": texts, "tokens": [[text] for text in texts]} for texts in CAPTIONS],
    }[layout]
    rows = [
        {"file_name": name, "sentences": captions, "split": split}
        for name, captions, split in zip(NAMES, given, SPLITS, strict=True)
    ]
    source = folder / f"table.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), source)
    else:
        source.write_text(json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows)))
    check(source)


def test_a_caption_a_column(folder):
    columns = ["image", "caption_0", "caption_1", "caption_2", "split"]
    rows = [
        [name, *texts, *[""] * (3 - len(texts)), split]
        for name, texts, split in zip(NAMES, CAPTIONS, SPLITS, strict=True)
    ]
    listing = list_source(str(write_csv(folder / "t.csv", columns, rows)))
    assert [list(filter(None, texts)) for texts in listing.captions.to_pylist()] == CAPTIONS


@pytest.mark.parametrize("kind", ["bytes", "struct"])
def test_parquet_files_that_hold_their_images(tmp_path, kind):
    images = [{"bytes": content, "path": None} for content in FILES.values()] if kind == "struct" else [*FILES.values()]
    rows = pa.table({"image": images, "captions": CAPTIONS})
    (tmp_path / "data").mkdir()
    for name, at in (("train-00000-of-00002", 0), ("train-00001-of-00002", 2), ("validation-00000-of-00001", 1)):
        pq.write_table(rows.slice(at, 1), tmp_path / "data" / f"{name}.parquet")
    listing = list_source(str(tmp_path))
    assert listing.captions.to_pylist() == [CAPTIONS[0], CAPTIONS[2], CAPTIONS[1]]
    assert [listing.images.read(row) for row in (2, 0, 1)] == [FILES[name] for name in ("b.png", "a.png", "c.png")]
    assert named_splits(listing, "train").splits.to_pylist() == ["train", "train", "dev"]


def karpathy(splits, **more):
    images = [
        {
            "filename": name,
            "split": split,
            "imgid": n,
            "sentences": [{"raw": text, "tokens": []} for text in texts],
            **more,
        }
        for n, (name, texts, split) in enumerate(zip(NAMES, CAPTIONS, splits, strict=True))
    ]
    return json.dumps({"images": images, "dataset": "coco"})


def test_karpathys_json_with_its_restval(folder):
    (folder / "val2014").mkdir()
    for name in NAMES:
        (folder / name).rename(folder / "val2014" / name)
    source = folder / "dataset_coco.json"
    source.write_text(karpathy(["train", "val", "restval"], filepath="val2014"))
    listing = check(source)
    assert named_splits(listing, "drop").splits.to_pylist() == ["train", "dev"]
    assert listing.kind.startswith("Karpathy's JSON")


def coco(names):
    found = [n for n, name in enumerate(NAMES) if name in names]
    return json.dumps(
        {
            "images": [{"id": 100 + n, "file_name": NAMES[n], "width": 1} for n in found],
            "annotations": [{"image_id": 100 + n, "id": n, "caption": text} for n in found for text in CAPTIONS[n]],
        }
    )


def test_cocos_captions(folder):
    (folder / "captions.json").write_text(coco(NAMES))
    check(folder / "captions.json", splits=None)


def test_a_folder_of_cocos_files_has_a_split_a_file(folder):
    for name, split in zip(NAMES, ("train2017", "val2017", "train2017"), strict=True):
        (folder / split).mkdir(exist_ok=True)
        (folder / name).rename(folder / split / name)
    (folder / "annotations").mkdir()
    (folder / "annotations" / "captions_train2017.json").write_text(coco(["a.png", "c.png"]))
    (folder / "annotations" / "captions_val2017.json").write_text(coco(["b.png"]))
    listing = list_source(str(folder))
    assert [listing.images.read(row) for row in (0, 2, 1)] == [*FILES.values()]
    assert named_splits(listing, "train").splits.to_pylist() == ["train", "train", "dev"]


@pytest.mark.parametrize("mapped", [False, True])
def test_files_of_ids_and_captions(folder, mapped):
    precomp = folder / "precomp"
    precomp.mkdir()
    names = dict(zip(NAMES, "123", strict=True)) if mapped else {name: name for name in NAMES}
    for split in ("train", "dev"):
        rows = [row for row in by_caption() if row[2] == split]
        rows.sort()
        (precomp / f"{split}_ids.txt").write_text("".join(f"{names[row[0]]}\n" for row in rows))
        (precomp / f"{split}_caps.txt").write_text("".join(f"{row[1]}\n" for row in rows))
    if mapped:
        (precomp / "id_mapping.json").write_text(json.dumps({number: name for name, number in names.items()}))
    listing = list_source(str(precomp), folder, Fields())
    assert [listing.images.read(row) for row in range(len(listing))] == [FILES[n] for n in ("b.png", "a.png", "c.png")]
    assert listing.captions.to_pylist() == [["b one"], ["a one", "a two"], ["c one", "c three", "c two"]]


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
    listing = list_source(str(tmp_path))
    assert listing.ids.to_pylist() == ["0/a", "c", "b"]
    assert [listing.images.read(row) for row in (0, 2, 1)] == [*FILES.values()]
    assert listing.captions.to_pylist() == [CAPTIONS[0], CAPTIONS[2], CAPTIONS[1]]
    assert named_splits(listing, "train").splits.to_pylist() == ["train", "train", "dev"]
    assert listing.images.describe(2).endswith("val-000.tar:b.png")


@pytest.mark.parametrize("layout", ["splits", "a column in one split", "one split"])
def test_saved_hugging_face_data_sets(tmp_path, layout):
    datasets = pytest.importorskip("datasets")
    images = [{"bytes": content, "path": None} for content in FILES.values()]
    features = datasets.Features({"image": datasets.Image(), "caption": [datasets.Value("string")]})
    whole = datasets.Dataset.from_dict({"image": images, "caption": CAPTIONS}, features=features)
    if layout == "splits":
        saved = datasets.DatasetDict({"train": whole.select([0, 2]), "validation": whole.select([1])})
    elif layout == "one split":
        saved = datasets.DatasetDict({"test": whole})
    else:
        saved = datasets.DatasetDict({"test": whole.add_column("split", ["train", "val", "restval"])})
    saved.save_to_disk(str(tmp_path / "saved"))
    if layout != "splits":
        check(tmp_path / "saved", splits=None if layout == "one split" else SPLITS)
        return
    listing = list_source(str(tmp_path / "saved"))
    assert [listing.images.read(row) for row in (0, 2, 1)] == [*FILES.values()]
    assert named_splits(listing, "train").splits.to_pylist() == ["train", "train", "dev"]


def test_a_hub_that_is_not_reached_is_one_sentence(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def fails(name):
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub (LocalEntryNotFoundError)\nmore")

    monkeypatch.setattr(datasets, "load_dataset", fails)
    with pytest.raises(ValueError, match=r"^some/set of the Hugging Face hub cannot be loaded \(.*\); .*save_to_disk"):
        list_source("hf:some/set")


def test_a_split_of_the_hub_is_named_and_its_configuration(monkeypatch):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "caption": [datasets.Value("string")]})
    images = [{"bytes": content, "path": None} for content in FILES.values()]
    whole = datasets.Dataset.from_dict({"image": images, "caption": CAPTIONS}, features=features)
    found = {("some/set", "large"): {"train": whole.select([0, 2]), "test": whole.select([1])}}
    monkeypatch.setattr(datasets, "load_dataset", lambda *name: found[name])
    load_splits.cache_clear()
    both, one = (list_source(f"hf:some/set/large{split}") for split in ("", "@test"))
    assert both.splits.to_pylist() == ["train", "train", "test"]
    assert one.splits is None
    assert [one.images.read(0)] == [*FILES.values()][1:2]
    with pytest.raises(ValueError, match=r"some/set/large of .* has no split 'dev'; its splits are \['test', 't"):
        list_source("hf:some/set/large@dev")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", "{", "damaged"),
        ("a.json", '{"images": [{"filename": "a"}]}', "no column is named like captions"),
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
    ],
)
def test_what_is_damaged_is_one_sentence_that_names_it(tmp_path, name, content, reason):
    source = tmp_path / name
    source.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=reason) as said:
        list_source(str(source))
    assert name in str(said.value)
    assert "\n" not in str(said.value)


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"does not exist; .*hf:OWNER/NAME"):
        list_source(str(tmp_path / "nothing"))
