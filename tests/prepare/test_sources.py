"""Every layout in use gives the same images and captions."""

import csv
import gzip
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from aoq.pipeline.config.dataset import Source
from aoq.pipeline.extras import load_splits
from aoq.pipeline.prepare.listing import list_source, named_splits
from aoq.pipeline.prepare.sources.records import LIST_BEGINS, clean_captions
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


def listed(path, **options):
    return list_source(Source(path=str(path), **options))


def check(source, *, splits=SPLITS, order=(0, 1, 2), **options):
    """The three images with their captions, in this order; splits by our names."""
    listing = clean_captions(listed(source, **options))
    assert [listing.images.read(row) for row in range(len(listing))] == [FILES[NAMES[n]] for n in order]
    assert [sorted(texts) for texts in listing.captions.to_pylist()] == [sorted(CAPTIONS[n]) for n in order]
    if splits is None:
        assert listing.splits is None
    else:
        assert named_splits(listing).splits.to_pylist() == [splits[n] for n in order]
    assert len(set(listing.ids.to_pylist())) == 3
    return listing


def by_caption():
    """A row per caption, the images mixed."""
    rows = [[name, text, split] for name, texts, split in ROWS for text in texts]
    return [rows[i] for i in (0, 2, 1, 3, 4, 5)]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 600_000_000), "has more than 500 MB"),
        (Path.mkdir, "is a folder"),
    ],
    ids=["pipe", "device", "sparse", "folder"],
)
def test_only_a_regular_file_of_bounded_size_is_read_as_an_image(folder, make, reason):
    """Others would wait for ever or fill the memory; also where a cell of a Parquet file names the image."""
    make(folder / "wrong.png")
    write_csv(folder / "table.csv", ["image", "caption"], [["wrong.png", "a one"]])
    held = {"image": [{"bytes": None, "path": "wrong.png"}], "caption": ["a one"]}
    pq.write_table(pa.table(held), folder / "table.parquet")
    for table in ("table.csv", "table.parquet"):
        with pytest.raises(ValueError, match=reason):
            listed(folder / table).images.read(0)


def test_a_table_of_texts_with_a_row_per_caption(folder):
    listing = check(write_csv(folder / "table.csv", ["filepath", "title", "split"], by_caption()))
    assert listing.captions.to_pylist() == CAPTIONS
    assert listing.kind == "a CSV table (images in filepath, captions in title)"
    assert listing.ids.to_pylist() == NAMES


@pytest.mark.parametrize(
    ("name", "header", "line"),
    [
        ("results.csv", "image_name| comment_number| comment\n", "{0}| {1}| {2}\n"),
        ("captions.txt", "image,caption\n", "{0},{2}\n"),
        ("Flickr8k.token.txt", "", "{0}#{1}\t{2}\n"),
    ],
)
def test_flickrs_own_files_of_captions(folder, name, header, line):
    rows = [line.format(image, n, text) for image, texts, _ in ROWS for n, text in enumerate(texts)]
    (folder / name).write_text(header + "".join(rows) + "\n")
    check(folder / name, splits=None)
    if name == "results.csv":  # as one line of Kaggle's
        (folder / name).write_text(header + "".join(rows) + "a.png| 4   A dog\n")
        with pytest.raises(ValueError, match=r"row 7 has 2 values, but .* 3 columns; repair it, or leave"):
            listed(folder / name)
        check(folder / name, splits=None, skip_broken=True)


def test_images_with_texts_beside_them(folder, caplog):
    for name, texts, _ in ROWS:
        (folder / name).with_suffix(".txt").write_text("\n".join(f"{text}\n" for text in texts))
    for name, text in (("without", None), ("empty", ""), ("blank", " \n\n")):
        (folder / f"{name}.png").write_bytes(FILES["a.png"])
        if text is not None:
            (folder / f"{name}.txt").write_text(text)
    check(folder, splits=None)
    assert "6 empty captions are left out" in caplog.text
    assert "3 images have no caption and are left out" in caplog.text
    for path in [*folder.glob("*.png"), *folder.glob("*.txt")]:
        (inside := folder / ("train" if path.stem == "a" else "Test")).mkdir(exist_ok=True)
        path.rename(inside / path.name)
    assert {*listed(folder).splits.to_pylist()} == {"train", "Test"}


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.txt", "t.jsonl"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("image\nétat".encode("latin-1"), r":2: byte 1 \(0xe9\) is not UTF-8; save the file as UTF-8"),
        ("image\nétat".encode("utf-16"), ":1: the file is UTF-16 by its byte order mark; save it as UTF-8"),
        (gzip.compress(b"image", mtime=0), ":1: the file is compressed by gzip; unpack it"),
    ],
    ids=["latin-1", "utf-16", "gzip"],
)
def test_a_table_of_another_encoding_is_refused_by_line_and_byte(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"^{tmp_path / name}{message}"):
        listed(tmp_path / name)


def test_splits_have_the_usual_names_and_none_is_empty(folder):
    rows = [[name, "a one", split] for name, split in zip(NAMES, ["Training", "validate", "eval"], strict=True)]
    table = write_csv(folder / "t.csv", ["image", "caption", "split"], rows)
    assert named_splits(listed(table)).splits.to_pylist() == ["train", "dev", "dev"]
    write_csv(table, ["image", "caption", "split"], [*rows[:2], ["c.png", "c one", ""]])
    with pytest.raises(ValueError, match=r"image c\.png has no split; give every image one, or draw them"):
        named_splits(listed(table))


def test_columns_that_the_user_names(folder):
    rows = [[*row, f"id {row[0]}"] for row in by_caption()]
    table = write_csv(folder / "t.csv", ["wo", "was", "wann", "wer"], rows)
    with pytest.raises(ValueError, match=r"found no caption column among wo, was, wann, wer"):
        listed(table)
    with pytest.raises(ValueError, match=r"t.csv: found no image column"):
        listed(table, caption_columns=("was",))
    listing = check(table, image_column="wo", caption_columns=("was",), id_column="wer", split_column="wann")
    assert listing.ids.to_pylist() == [f"id {name}" for name in NAMES]
    write_csv(table, ["wo", "was", "wann", "wer"], [[*rows[0][:3], " "], *rows[1:]])
    with pytest.raises(ValueError, match=r"column 'wer' has no id for image \d"):
        listed(table, image_column="wo", caption_columns=("was",), id_column="wer")


def test_a_caption_per_column(folder):
    rows = [[name, *texts, *[""] * (3 - len(texts)), split] for name, texts, split in ROWS]
    for first in ("caption_0", "caption"):
        check(write_csv(folder / "t.csv", ["image", first, "caption_1", "caption_2", "split"], rows))
    titled = [[*row, "a title"] for row in rows]
    check(write_csv(folder / "t.csv", ["image", "caption_0", "caption_1", "caption_2", "split", "title"], titled))


@pytest.mark.parametrize("layout", ["list", "structs", "struct of lists"])
def test_lists_and_records_of_captions_in_parquet(folder, layout):
    captions = {
        "list": CAPTIONS,
        "structs": [[{"raw": text, "sentid": n} for n, text in enumerate(texts)] for texts in CAPTIONS],
        "struct of lists": [{"raw": texts, "tokens": [[text] for text in texts]} for texts in CAPTIONS],
    }[layout]
    rows = [
        {"file_name": name, "sentences": texts, "split": split}
        for name, texts, split in zip(NAMES, captions, SPLITS, strict=True)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "table.parquet")
    check(folder / "table.parquet")


@pytest.mark.parametrize("images", [[*FILES.values()], HELD, pa.array(FILES.values(), pa.binary_view())])
def test_parquet_files_that_hold_their_images(tmp_path, images):
    """Each file has types of its own, as those of pandas, Polars and datasets have."""
    names = ("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001")
    lists = pa.list_(pa.string()), pa.list_(pa.string_view()), pa.large_list(pa.large_string())
    ids = pa.array(["i"]), pa.array(["i"]).cast(pa.string_view()), pa.array(["i"]).dictionary_encode()
    (tmp_path / "data").mkdir()
    for name, at, kind, column in zip(names, (0, 2, 1), lists, ids, strict=True):
        rows = {"image": images[at : at + 1], "captions": pa.array(CAPTIONS[at : at + 1], kind), "label": column}
        pq.write_table(pa.table(rows), tmp_path / "data" / f"{name}.parquet")
    check(tmp_path, order=BY_SPLIT)


def test_parquet_cells_with_a_path_alone(folder, tmp_path_factory):
    """The paths that `datasets` leaves where it did not embed the pictures start at the file, or at --images."""
    rows = pa.table({"image": [{"bytes": None, "path": name} for name in NAMES], "captions": CAPTIONS, "split": SPLITS})
    pq.write_table(rows, folder / "t.parquet")
    check(folder / "t.parquet")
    (elsewhere := tmp_path_factory.mktemp("elsewhere") / "t.parquet").write_bytes((folder / "t.parquet").read_bytes())
    check(elsewhere, images=str(folder))


def test_karpathys_json_with_its_restval(folder):
    (folder / "val2014").mkdir()
    for name in NAMES:
        (folder / name).rename(folder / "val2014" / name)
    images = []
    for n, (name, texts, split) in enumerate(zip(NAMES, CAPTIONS, ["train", "val", "restval"], strict=True)):
        sentences = [{"raw": text, "tokens": []} for text in texts]
        about = {"filepath": "val2014", "filename": name, "split": split, "imgid": n}
        images.append({**about, "sentences": sentences})
    source = folder / "dataset_coco.json"
    source.write_text(json.dumps({"images": images, "dataset": "coco"}))
    listing = check(source)
    assert named_splits(listing).splits.to_pylist() == ["train", "dev", "train"]
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
        (precomp / f"{split}_ids.txt").write_text("".join(f"{ids[row[0]]}\n" for row in [*rows, rows[0]]))
        (precomp / f"{split}_caps.txt").write_text("".join(f"{row[1]}\n" for row in rows) + "\n")
    if mapped:
        (precomp / "id_mapping.json").write_text(json.dumps({number: name for name, number in ids.items()}))
    check(precomp, images=str(folder), order=(1, 0, 2))


def test_a_folder_of_ours_pairs_its_captions_by_its_own_file(folder):
    own = folder / "own"
    own.mkdir()
    pq.write_table(pa.table({"id": NAMES}), own / "train_images.parquet")
    (own / "train_ids.txt").write_text("".join(f"{name}\n" for name in NAMES))
    texts = [(text, n) for n, captions in enumerate(CAPTIONS) for text in captions]
    (own / "train_caps.txt").write_text("".join(f"{text}\n" for text, _ in texts))
    np.save(own / "train_pairs.npy", np.array([n + 5 for _, n in texts], np.int32))
    with pytest.raises(ValueError, match=r"train_pairs\.npy names image 7, but .*train_ids\.txt has 3 ids"):
        listed(own, images=str(folder))
    np.save(own / "train_pairs.npy", np.array([n for _, n in texts], np.int32))
    found = listed(own, images=str(folder))
    assert dict(zip(found.ids.to_pylist(), found.captions.to_pylist(), strict=True)) == dict(
        zip(NAMES, CAPTIONS, strict=True)
    )


def shard(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_shards_of_webdataset(tmp_path):
    members = [("0/a.png", FILES["a.png"]), ("0/a.json", json.dumps({"captions": CAPTIONS[0]}).encode())]
    shard(tmp_path / "cc-Train-000.tar", [*members, ("0/lonely.png", FILES["a.png"])])
    texts = "\n".join(CAPTIONS[1]).encode()
    shard(tmp_path / "cc-val-000.tar", [("b.png", FILES["b.png"]), ("b.txt", texts), ("b.cls", b"7")])
    members = [("c.json", json.dumps({"captions": CAPTIONS[2]}).encode()), ("c.png", FILES["c.png"])]
    shard(tmp_path / "cc-Train-001.tar", members)
    listing = check(tmp_path, order=BY_SPLIT)
    assert listing.ids.to_pylist() == ["0/a", "c", "b"]
    assert listing.images.describe(2).endswith("cc-val-000.tar:b.png")


WRITTEN = ["a one", "b 'two'", 'c "three"']
CELLS = [
    json.dumps(WRITTEN),
    repr(WRITTEN),
    str(np.array(WRITTEN)),
    f"[None, {repr(WRITTEN)[1:]}",
    "[]",
    "",
    "a [b] c",
    "[a b]",
]
READ = [WRITTEN, WRITTEN, WRITTEN, [None, *WRITTEN], [], [""], ["a [b] c"], ["[a b]"]]


def test_a_list_in_a_cell_is_read_as_its_captions(tmp_path):
    rows = [[f"{row}.png", cell] for row, cell in enumerate(CELLS)]
    source = write_csv(tmp_path / "t.csv", ["image", "caption"], rows)
    assert listed(source).captions.to_pylist() == READ
    write_csv(source, ["image", "caption"], [["a.png", "['a' ... 'b']"]])
    with pytest.raises(ValueError, match=r"row 1 \(from 1\) of column 'caption' looks like a list"):
        listed(source)


JSON_TEXTS = st.none() | st.integers(0, 99) | st.text("ab é'\n", max_size=4)
JSON_CAPTIONS = st.recursive(
    JSON_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.fixed_dictionaries({"raw": inner, "tokens": st.just(["a"])}),
    max_leaves=5,
)
JSON_RECORDS = st.fixed_dictionaries(
    {"image": st.sampled_from(NAMES)},
    optional={
        "split": st.sampled_from(["train", "dev", None]),
        "note": st.none() | st.lists(st.integers()),
        **dict.fromkeys(("caption", "captions", "sentences", "text"), JSON_CAPTIONS),
    },
)


def captions_in(value):
    """The captions of a value, however it nests them."""
    if isinstance(value, dict):
        return captions_in(value["raw"])
    if isinstance(value, list):
        return [text for item in value for text in captions_in(item)]
    return [text] if value is not None and (text := " ".join(str(value).split())) else []


@settings(max_examples=60, deadline=None)
@given(records=st.lists(JSON_RECORDS, min_size=1, max_size=5), layout=st.sampled_from(["json", "images", "jsonl"]))
def test_json_records_of_any_shape_keep_all_captions(tmp_path_factory, records, layout):
    """Records may lack fields, name them differently or hold null; those of one path and split are one image."""
    source = tmp_path_factory.mktemp("records") / f"t.{'jsonl' if layout == 'jsonl' else 'json'}"
    whole = {"images": records} if layout == "images" else records
    source.write_text("\n\n".join(map(json.dumps, records)) if layout == "jsonl" else json.dumps(whole))
    expected = {}
    for record in records:
        fields = [record.get(name) for name in ("caption", "captions", "sentences", "text")]
        filled = next((value for value in fields if value not in (None, "", [])), None)
        expected.setdefault((record["image"], record.get("split")), []).extend(captions_in(filled))
    if not any(expected.values()):
        with pytest.raises(ValueError, match=r"found no caption column|no image has a caption"):
            clean_captions(listed(source))
        return
    listing = clean_captions(listed(source))
    splits = [None] * len(listing) if listing.splits is None else listing.splits.to_pylist()
    found = zip(listing.ids.to_pylist(), splits, listing.captions.to_pylist(), strict=True)
    assert {(name, split): captions for name, split, captions in found} == {k: v for k, v in expected.items() if v}


def test_a_field_of_records_is_named(tmp_path):
    source = tmp_path / "t.jsonl"
    source.write_text('{"image": "a.png", "caption": {"en": "e", "de": "d"}}\n{"image": "b.png"}')
    with pytest.raises(
        ValueError, match=r"is a record of en, de; name the one with the text, as in --caption-column caption.en"
    ):
        listed(source)
    assert listed(source, caption_columns=("caption.de",)).captions.to_pylist() == [["d"], [None]]


DIALECTS = {
    "minimal": {"quoting": csv.QUOTE_MINIMAL},
    "all": {"quoting": csv.QUOTE_ALL},
    "none": {"quoting": csv.QUOTE_NONE, "quotechar": None},
}
LINE = st.text("ab é[\"',;|\t\\", max_size=8)
LINES = st.lists(st.text("ab é\"'", max_size=4), max_size=3).map("\n".join)
"""Separators in these would make each line a row."""
UNQUOTED = st.text("ab é[',;|\t", max_size=8) | st.just('a "b" c') | st.just('"a" b')


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from([*DIALECTS]),
    separator=st.sampled_from(",\t|;"),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    bom=st.sampled_from(["", "\ufeff"]),
    suffix=st.sampled_from(["csv", "tsv"]),
)
def test_captions_are_read_in_any_dialect(tmp_path_factory, data, name, separator, end, bom, suffix):
    quoted = LINE if end == "\r" else LINE | LINES  # Python before 3.13 quotes no other end
    texts = (UNQUOTED if name == "none" else quoted).filter(lambda text: not LIST_BEGINS.match(text))
    captions = data.draw(st.lists(texts, min_size=1, max_size=4))
    file, source = io.StringIO(newline=""), tmp_path_factory.mktemp("dialect") / f"t.{suffix}"
    try:
        writer = csv.writer(file, delimiter=separator, lineterminator=end, **DIALECTS[name])
        writer.writerows([["image", "caption"], *([f"{row}.png", text] for row, text in enumerate(captions))])
    except csv.Error:  # Python's writer has no way to write this
        reject()
    source.write_bytes((bom + file.getvalue()).encode())
    assert listed(source).captions.to_pylist() == [[text] for text in captions]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_quotation_marks_belong_to_the_text_where_they_join_rows(tmp_path, end):
    lines = ["image\tcaption", 'a.png\t"open', "b.png\tone", 'c.png\tends"']
    (tmp_path / "t.tsv").write_bytes(end.join(lines).encode())
    assert listed(tmp_path / "t.tsv").captions.to_pylist() == [['"open'], ["one"], ['ends"']]


def test_samples_of_shards_are_joined_counted_and_named(tmp_path, caplog):
    image, note = FILES["a.png"], ("._a.png", b"note")
    apart = [("a.png", image), note, *((f"{one}.png", image) for one in "bc"), ("d.txt", b"lonely")]
    apart.append(("a.txt", b"\xef\xbb\xbfa"))
    shard(tmp_path / "x.tar", [*apart, ("b.json", b'{"caption": null}'), ("c.json", b'{"captions": [3, "c"]}')])
    shard(tmp_path / "y.tar", [("a.png", image), ("a.txt", b"other")])
    with tarfile.open(tmp_path / "y.tar", "a") as archive:
        link = tarfile.TarInfo("b.png")
        link.type, link.linkname = tarfile.LNKTYPE, "a.png"
        archive.addfile(link)
    listing = listed(tmp_path)
    assert listing.captions.to_pylist() == [["a"], [None], ["3", "c"], ["other"]]
    assert listing.ids.to_pylist() == ["x/a", "x/b", "x/c", "y/a"]
    assert "1 samples have no picture" in caplog.text
    assert "1 members are links" in caplog.text
    assert "1 files (._*)" in caplog.text
    shard(tmp_path / "y.tar", [("a.png", image), ("a.txt", b"caf\xe9"), ("b.png", image), ("b.txt", b"b")])
    with pytest.raises(ValueError, match=r"1 records cannot be read: .*y.tar:a.txt is not a text in UTF-8; .*--skip-b"):
        listed(tmp_path)
    assert listed(tmp_path, skip_broken=True).captions.to_pylist()[3] == ["b"]
    for options in ({"caption_columns": ("nonsense",)}, {"image_column": "png"}):
        with pytest.raises(ValueError, match=r"no column 'nonsense'|leave out --images and --image-column"):
            listed(tmp_path / "x.tar", **options)


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


def test_a_configuration_and_a_split_of_the_hub(monkeypatch, dataset):
    splits = {"train": dataset.select([0, 2]), "test": dataset.select([1])}
    monkeypatch.setattr("datasets.load_dataset", lambda *name: {("some/set", "large"): splits}[name])
    load_splits.cache_clear()
    both, one = (listed(f"hf:some/set/large{split}") for split in ("", "@test"))
    assert both.splits.to_pylist() == ["train", "train", "test"]
    assert one.splits is None
    assert one.images.read(0) == FILES["b.png"]


def test_two_columns_of_one_name_in_parquet_are_refused(tmp_path):
    table = pa.table({"image": ["a"], "caption": ["b"]})
    pq.write_table(table.append_column("caption", table["caption"]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="two columns have the same name; they are image, caption, caption"):
        listed(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.json", "{", "damaged"),
        ("a.json", "[1]", "list of records"),
        ("a.json", '{"images": [], "annotations": [{"image_id": 1, "caption": "a"}]}', "image 1, which is not listed"),
        ("a.csv", "image,caption\na.png,\xff", "damaged|UTF|image"),
        ("a.csv", "image,caption\na," + "x" * 200_000, "line 2: field larger than field limit"),
        ("a.csv", "image,image\na,b\n", "two columns have the same name"),
        ("a.csv", 'image,caption\na,"b \\"c\\""\n', "line 2: .*is written twice"),
        ("a.csv", 'image,caption\na,"b"c,d\ne\n', "line 2: "),
        ("a.csv", "image,caption\na,b\nc\n", "row 2 has 1 values, but the header names 2"),
        ("a.jsonl", '{"image": "a", "caption": "b"}\n{"image": tru', "line 2"),
        ("a.jsonl", '{"image": "a", "caption": "b", "caption": "c"}', "line 1: an object has the key 'caption' twice"),
        ("a.jsonl", '{"image": ["a"], "caption": "b"}', "holds a list; it needs one text or number"),
        ("a.parquet", "PAR1", "damaged"),
        ("a.tar", "nothing", "tar archive"),
        ("a.doc", "", "in a known layout"),
        ("", "", r"is not a folder|in a known layout"),
    ],
)
def test_a_damaged_source_is_one_sentence_that_names_it(tmp_path, name, content, reason):
    source = tmp_path / name
    if name:
        source.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=reason) as refusal:
        listed(source)
    assert name in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_missing_source(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"does not exist; .*hf:OWNER/NAME"):
        listed(tmp_path / "nothing")
