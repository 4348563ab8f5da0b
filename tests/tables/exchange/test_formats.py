"""Every format, as each trainer's source reads it, against loops over its definition, with lists of any length."""

import ast
import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.exchange.formats import FORMATS
from aoq.pipeline.tables.exchange.outgoing import Names
from aoq.pipeline.tables.exchange.writers import DOCUMENT, MMEB_QUERY, QUESTION
from aoq.pipeline.tables.pairs import SIDES

DEPTH = 4
FULL = ("n-tuple", "ids", "pylate", "colpali")
"""Formats whose rows have as many negatives as there are places."""
GROUPED = ("labeled-pair", "flagembedding", "tevatron", "nemo")
"""Formats by anchor; the others have a row, or some, for each positive."""


def shorten(ids, scores):
    """Remove the first negative of anchor 1, all but one of anchor 2's, and all of anchor 3's."""
    ids[1, 0] = ids[2, 1:] = ids[3] = -1


@pytest.fixture(params=DIRECTIONS)
def direction(request):
    return request.param


def rows_by_definition(name, group, anchors, candidates, scored):
    """Yield the rows of one anchor with its positives and negatives, pairs of a row and its score."""
    anchor, positives, negatives = group
    if not positives or (name != "labeled-pair" and len(negatives) < (DEPTH if name in FULL else 1)):
        return
    key, value = anchors.ids[anchor], anchors.values[anchor]
    for one in [positives] if name in GROUPED else [[one] for one in positives]:
        parts = one, negatives
        own, listed = ([candidates.values[row] for row, _ in part] for part in parts)
        own_ids, listed_ids = ([candidates.ids[row] for row, _ in part] for part in parts)
        own_scores, listed_scores = ([score for _, score in part] for part in parts)
        labels, documents = [1] * len(own) + [0] * len(listed), own + listed
        scores = {"scores": own_scores + listed_scores} if scored else {}
        if name == "triplet":
            for text, score in zip(listed, listed_scores, strict=True):
                more = {"scores": [*own_scores, score]} if scored else {}
                yield {"anchor": value, "positive": own[0], "negative": text, **more}
        elif name == "labeled-pair":
            for text, label, score in zip(documents, labels, own_scores + listed_scores, strict=True):
                yield {"anchor": value, "positive": text, **({"score": score} if scored else {"label": label})}
        elif name == "n-tuple":
            numbered = {f"negative_{place}": text for place, text in enumerate(listed, start=1)}
            yield {"anchor": value, "positive": own[0], **numbered, **scores}
        elif name == "labeled-list":
            yield {"anchor": value, "positive": documents, **(scores or {"labels": labels})}
        elif name == "ids":
            yield {"query_id": key, "positive_id": own_ids[0], "negative_ids": listed_ids, **scores}
        elif name == "pylate":
            yield {"query_id": key, "document_ids": own_ids + listed_ids, **scores}
        elif name == "flagembedding":
            more = {"pos_scores": own_scores, "neg_scores": listed_scores} if scored else {}
            yield {"query": value, "pos": own, "neg": listed, **more}
        elif name == "tevatron":
            shown = {"query_text": "", "query_image": picture(value)} if anchors.are_pictures else {"query_text": value}
            yield {"query_id": key, **shown, "positive_document_ids": own_ids, "negative_document_ids": listed_ids}
        elif name == "nemo":
            documents = [[{"id": one} for one in ids] for ids in (own_ids, listed_ids)]
            about = {"question_id": key, "question": value, "corpus_id": "out"}
            yield {**about, "pos_doc": documents[0], "neg_doc": documents[1]}
        elif name == "colpali":
            rows = [[row for row, _ in part] for part in parts]
            yield {"query": value, "positive_passages": rows[0], "negative_passages": rows[1]}
        elif name == "ms-swift":
            row = {"messages": message(anchors, value)} | ({"images": [value]} if anchors.are_pictures else {})
            for prefix, texts in (("positive", own), ("negative", listed)):
                row[f"{prefix}_messages"] = [message(candidates, text) for text in texts]
                row |= {f"{prefix}_images": [[text] for text in texts]} if candidates.are_pictures else {}
            yield row
        else:
            query, path = (MMEB_QUERY, value) if anchors.are_pictures else (QUESTION + value, "")
            row = {"qry": query, "qry_image_path": path}
            shown = [(DOCUMENT, text) if candidates.are_pictures else (text, "") for text in documents]
            row |= {"pos_text": shown[0][0], "pos_image_path": shown[0][1]}
            yield row | {"neg_text": [text for text, _ in shown[1:]], "neg_image_path": [path for _, path in shown[1:]]}


def message(side, value):
    return [{"role": "user", "content": "<image>" if side.are_pictures else value}]


def picture(path, *, packed=False):
    """A picture as `datasets` stores it."""
    file = Path(path)
    return {"bytes": file.read_bytes(), "path": file.name} if packed else {"bytes": None, "path": path}


def read(path):
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    text = path.read_text(encoding="utf-8")
    return json.loads(text)["data"] if path.suffix == ".json" else [json.loads(line) for line in text.splitlines()]


TEXTS = [
    *((name, scored) for name in ("triplet", "n-tuple", "labeled-pair", "labeled-list") for scored in (False, True)),
    *(("pylate", True), ("flagembedding", False), ("flagembedding", True), ("tevatron", False)),
]
PICTURES = [*((name, False) for name in ("ids", "tevatron", "ms-swift", "vlm2vec")), ("ids", True)]
CASES = [
    *((name, scored, False, direction) for name, scored in TEXTS for direction in DIRECTIONS),
    *((name, scored, True, direction) for name, scored in PICTURES for direction in DIRECTIONS),
    *((name, False, pictures, "t2i") for name in ("colpali", "nemo") for pictures in (False, True)),
]


@pytest.mark.parametrize(("name", "scored", "pictures", "direction"), CASES)
def test_rows(name, scored, pictures, direction, world, outgoing, groups, tmp_path):
    anchors, candidates = ((world.pictures if pictures else world.names)[side] for side in SIDES[direction])
    made = outgoing(direction, scored=scored, change=shorten, pictures=pictures)
    written = FORMATS[name].write(made, tmp_path / "out")
    by_anchor = [
        list(rows_by_definition(name, group, anchors, candidates, scored))
        for group in groups(direction, DEPTH, shorten)
    ]
    rows = [row for each in by_anchor for row in each]
    found = read(tmp_path / "out" / FORMATS[name].path)
    assert found == rows
    assert list(found[0]) == list(rows[0])
    assert written == (len(rows), sum(not each for each in by_anchor))


@pytest.mark.parametrize(("name", "text"), [("ms-swift", "see <image> here"), ("vlm2vec", "<|image_1|>")])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_text_with_what_the_reader_replaces_is_refused(name, text, direction, world, outgoing, tmp_path):
    made, side = outgoing(direction, pictures=True), "candidates" if direction == "i2t" else "anchors"
    texts = Names(getattr(made, side).ids, [*world.texts[:-1], text])
    with pytest.raises(
        ValueError, match=r"the text of caption 17 has '<.*>', which the reader of this format replaces"
    ):
        FORMATS[name].write(replace(made, **{side: texts}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pictures", [False, True])
@pytest.mark.parametrize(
    ("name", "path", "columns", "is_anchor"),
    [
        ("ids", "images.parquet", ("image_id", "image_id", "text", "image"), False),
        ("ids", "captions.parquet", ("caption_id", "caption_id", "text", "image"), True),
        ("pylate", "queries.parquet", ("query_id", "query_id", "text", "image"), True),
        ("pylate", "documents.parquet", ("document_id", None, "text", None), False),
        ("tevatron", "corpus/train.parquet", ("docid", "docid", "text", "image"), False),
        ("colpali", "corpus.parquet", (None, None, "doc", "doc"), False),
        ("nemo", "corpus/data/train-00000-of-00001.parquet", ("id", "image_filename", "text", "image"), False),
    ],
)
def test_lookups(name, path, columns, is_anchor, pictures, packed, world, outgoing, tmp_path):
    pictures = pictures and name != "pylate"
    FORMATS[name].write(outgoing("t2i", scored=name == "pylate", pictures=pictures, packed=packed), tmp_path / "out")
    side = (world.pictures if pictures else world.names)["captions" if is_anchor else "images"]
    id_column, value_column = columns[side.are_pictures], columns[2 + side.are_pictures]
    expected = [
        {id_column: key, value_column: picture(value, packed=packed) if side.are_pictures else value}
        for key, value in zip(side.ids, side.values, strict=True)
    ]
    assert read(tmp_path / "out" / path) == [{k: v for k, v in row.items() if k} for row in expected]
    features = json.loads(pq.read_schema(tmp_path / "out" / path).metadata[b"huggingface"])["info"]["features"]
    assert features == ({value_column: {"_type": "Image"}} if side.are_pictures else {})
    if name == "nemo":
        about = json.loads((tmp_path / "out" / "corpus" / "merlin_metadata.json").read_text())
        assert about == {"class": "ColPaliDataset" if pictures else "TextQADataset", "corpus_id": "out"}


def test_trec(direction, world, outgoing, groups, tmp_path):
    ids = [world.names[side].ids for side in SIDES[direction]]
    lines = [
        (ids[0][anchor], "Q0", ids[1][row], str(place), score, "aoq")
        for anchor, _, negatives in groups(direction, DEPTH, shorten)
        for place, (row, score) in enumerate(negatives, start=1)
    ]
    written = FORMATS["trec"].write(outgoing(direction, change=shorten), tmp_path / "run")
    found = [line.split(" ") for line in (tmp_path / "run" / f"{direction}.trec").read_text().splitlines()]
    assert [(*fields[:4], np.float32(fields[4]), fields[5]) for fields in found] == lines
    assert written == (len(lines), 1)
    spaced = replace(outgoing(direction), anchors=Names(["a b", *ids[0][1:]], ids[0]))
    with pytest.raises(ValueError, match="'a b' cannot be an id in a TREC run"):
        FORMATS["trec"].write(spaced, tmp_path / "spaced")


def test_official_lists(direction, outgoing, groups, tmp_path):
    FORMATS["aoq"].write(outgoing(direction), tmp_path / "f30k")
    found = np.load(tmp_path / "f30k" / f"{direction}_f30k.npy")
    assert found.dtype == np.int32
    assert found.tolist() == [[row for row, _ in negatives] for _, _, negatives in groups(direction)]
    with pytest.raises(ValueError, match=r"anchor \d has \d negatives, but the official lists have no padding"):
        FORMATS["aoq"].write(outgoing(direction, change=shorten), tmp_path / "short")


def no_way_back(ids, scores):
    """Captions 4 and 5 of image 2 list images 0 and 1 alone, and the captions of these nothing."""
    ids[:3], ids[3:6] = -1, [0, 1, -1, -1]


@pytest.mark.parametrize("change", [shorten, no_way_back])
def test_negclip(change, world, outgoing, groups, tmp_path):
    whole = outgoing("i2t", pictures=True)
    written = FORMATS["negclip"].write(outgoing("t2i", change=change, pictures=True, other=whole), tmp_path / "out")
    with (tmp_path / "out" / "train.tsv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file, delimiter="\t"))
    captions = {image: [world.texts[row] for row, _ in negatives] for image, _, negatives in groups("i2t")}
    images = {}
    for caption, positives, negatives in groups("t2i", DEPTH, change):
        if positives and negatives:
            images[caption] = (positives[0][0], [row for row, _ in negatives])
    while gone := [one for one, (_, rows) in images.items() if not {own for own, _ in images.values()} & set(rows)]:
        for one in gone:
            del images[one]
    assert written == (len(images), len(world.texts) - len(images))
    owners = [own for own, _ in images.values()]
    for row, (caption, (image, listed)) in zip(found, images.items(), strict=True):
        assert (row["title"], row["filepath"]) == (world.texts[caption], world.files[image])
        assert ast.literal_eval(row["neg_caption"]) == captions[image]
        assert ast.literal_eval(row["neg_image"]) == [owners.index(one) for one in listed if one in owners]
