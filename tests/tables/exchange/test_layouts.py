"""Layouts with pictures, as each trainer's source reads them, against loops over their definition."""

from __future__ import annotations

import ast
import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.exchange.formats import FORMATS
from aoq.pipeline.tables.exchange.vlm2vec import DOCUMENT, QUERY, QUESTION


def shorten(ids, scores):
    """The first negative of anchor 1 is gone, all but one of anchor 2's, and all of anchor 3's."""
    ids[1, 0] = ids[2, 1:] = ids[3] = -1


@pytest.fixture(params=DIRECTIONS)
def direction(request):
    return request.param


@pytest.fixture(params=[None, shorten], ids=["whole", "short"])
def change(request):
    return request.param


@pytest.fixture
def sides(world, direction):
    names = world.pictures
    return (names["i2t"], names["t2i"]) if direction == "i2t" else (names["t2i"], names["i2t"])


def pairs(groups, depth, *, full):
    """An anchor, one of its positives, and its negatives: as many as asked for, or any number but none."""
    for anchor, positives, negatives in groups:
        if negatives and (len(negatives) == depth or not full):
            for positive, _ in positives:
                yield anchor, positive, [row for row, _ in negatives]


def rows_of(path: Path) -> list[dict]:
    return pq.read_table(path).to_pylist()


def stands_for(side, row, *, packed=False):
    """A text, or how `datasets` stores a picture."""
    if not side.are_pictures:
        return side.values[row]
    file = Path(side.values[row])
    return {"bytes": file.read_bytes(), "path": file.name} if packed else {"bytes": None, "path": str(file)}


def is_decoded(path, column):
    """True if `datasets` decodes the pictures of a column."""
    features = json.loads(pq.read_schema(path).metadata[b"huggingface"])["info"]["features"]
    return features == {column: {"_type": "Image"}}


@pytest.mark.parametrize("packed", [False, True])
def test_ids(packed, direction, change, sides, outgoing, groups, tmp_path):
    made = outgoing(direction, change=change, pictures=True, packed=packed)
    written = FORMATS["ids"].write(made, tmp_path / "out")
    anchors, candidates = sides
    rows = [
        {
            "query_id": anchors.ids[anchor],
            "positive_id": candidates.ids[positive],
            "negative_ids": [candidates.ids[row] for row in negatives],
        }
        for anchor, positive, negatives in pairs(groups(direction, 4, change), 4, full=True)
    ]
    assert rows_of(tmp_path / "out" / "train.parquet") == rows
    assert written.anchors_left_out == len(anchors.ids) - len({row["query_id"] for row in rows})
    for side in sides:
        value = "image" if side.are_pictures else "text"
        path, column = tmp_path / "out" / f"{side.noun}s.parquet", f"{side.noun}_id"
        expected = [{column: name, value: stands_for(side, row, packed=packed)} for row, name in enumerate(side.ids)]
        assert rows_of(path) == expected
        assert is_decoded(path, "image") == side.are_pictures


def test_scores_of_ids(direction, outgoing, groups, tmp_path):
    FORMATS["ids"].write(outgoing(direction, scored=True, pictures=True), tmp_path / "out")
    expected = [
        [score, *(score for _, score in negatives)]
        for _, positives, negatives in groups(direction)
        for _, score in positives
    ]
    assert [row["scores"] for row in rows_of(tmp_path / "out" / "train.parquet")] == expected


@pytest.mark.parametrize("pictures", [False, True])
def test_tevatron(pictures, direction, change, world, outgoing, groups, tmp_path):
    names = world.pictures if pictures else world.names
    anchors, candidates = (names[one] for one in (direction, "t2i" if direction == "i2t" else "i2t"))
    made = outgoing(direction, change=change, pictures=pictures)
    written = FORMATS["tevatron"].write(made, tmp_path / "out")
    rows = []
    for anchor, positives, negatives in groups(direction, 4, change):
        if positives and negatives:
            row = {"query_id": anchors.ids[anchor], "query_text": anchors.values[anchor]}
            if anchors.are_pictures:
                row |= {"query_text": "", "query_image": stands_for(anchors, anchor)}
            ids = [[candidates.ids[one] for one, _ in documents] for documents in (positives, negatives)]
            rows.append({**row, "positive_document_ids": ids[0], "negative_document_ids": ids[1]})
    assert rows_of(tmp_path / "out" / "train" / "train.parquet") == rows
    assert (written.rows, written.anchors_left_out) == (len(rows), len(anchors.ids) - len(rows))
    value = "image" if candidates.are_pictures else "text"
    corpus = [{"docid": name, value: stands_for(candidates, row)} for row, name in enumerate(candidates.ids)]
    assert rows_of(tmp_path / "out" / "corpus" / "train.parquet") == corpus


@pytest.mark.parametrize("packed", [False, True])
def test_colpali(packed, change, world, outgoing, groups, tmp_path):
    FORMATS["colpali"].write(outgoing("t2i", change=change, pictures=True, packed=packed), tmp_path / "out")
    assert rows_of(tmp_path / "out" / "train.parquet") == [
        {"query": world.texts[anchor], "positive_passages": [positive], "negative_passages": negatives}
        for anchor, positive, negatives in pairs(groups("t2i", 4, change), 4, full=True)
    ]
    images = world.pictures["i2t"]
    corpus = [{"doc": stands_for(images, row, packed=packed)} for row in range(len(images.ids))]
    assert rows_of(tmp_path / "out" / "corpus.parquet") == corpus


@pytest.mark.parametrize("pictures", [False, True])
def test_nemo(pictures, change, world, outgoing, groups, tmp_path):
    written = FORMATS["nemo"].write(outgoing("t2i", change=change, pictures=pictures), tmp_path / "out")
    questions = [
        {
            "question_id": str(anchor),
            "question": world.texts[anchor],
            "corpus_id": "out",
            "pos_doc": [{"id": world.ids[positive]}],
            "neg_doc": [{"id": world.ids[row]} for row in negatives],
        }
        for anchor, positive, negatives in pairs(groups("t2i", 4, change), 4, full=False)
    ]
    assert json.loads((tmp_path / "out" / "train.json").read_text()) == {
        "corpus": {"path": "corpus"},
        "data": questions,
    }
    assert (written.rows, written.anchors_left_out) == (len(questions), len(world.texts) - len(questions))
    about = json.loads((tmp_path / "out" / "corpus" / "merlin_metadata.json").read_text())
    assert about == {"class": "ColPaliDataset" if pictures else "TextQADataset", "corpus_id": "out"}
    (shard,) = (tmp_path / "out" / "corpus" / "data").iterdir()
    images = (world.pictures if pictures else world.names)["i2t"]
    columns = ("image_filename", "image") if pictures else ("id", "text")
    corpus = [dict(zip(columns, (name, stands_for(images, row)), strict=True)) for row, name in enumerate(images.ids)]
    assert rows_of(shard) == corpus


def test_swift(direction, change, sides, outgoing, groups, tmp_path):
    written = FORMATS["ms-swift"].write(outgoing(direction, change=change, pictures=True), tmp_path / "out")
    anchors, candidates = sides
    lines = []
    for anchor, positive, negatives in pairs(groups(direction, 4, change), 4, full=False):
        line = {"messages": message(anchors, anchor)}
        line |= {"images": [anchors.values[anchor]]} if anchors.are_pictures else {}
        for prefix, rows in (("positive", [positive]), ("negative", negatives)):
            line[f"{prefix}_messages"] = [message(candidates, row) for row in rows]
            if candidates.are_pictures:
                line[f"{prefix}_images"] = [[candidates.values[row]] for row in rows]
        lines.append(line)
    text = (tmp_path / "out" / "train.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in text.splitlines()] == lines
    left = {json.dumps(line.get("images", line["messages"])) for line in lines}
    assert (written.rows, written.anchors_left_out) == (len(lines), len(anchors.ids) - len(left))


def message(side, row):
    return [{"role": "user", "content": "<image>" if side.are_pictures else side.values[row]}]


def test_vlm2vec(direction, change, world, sides, outgoing, groups, tmp_path):
    FORMATS["vlm2vec"].write(outgoing(direction, change=change, pictures=True), tmp_path / "out")
    anchors, candidates = sides

    def document(row):
        return (DOCUMENT, candidates.values[row]) if candidates.are_pictures else (candidates.values[row], "")

    rows = []
    for anchor, positive, negatives in pairs(groups(direction, 4, change), 4, full=False):
        value = anchors.values[anchor]
        query = (QUERY, value) if anchors.are_pictures else (QUESTION + value, "")
        texts, paths = zip(*map(document, negatives), strict=True)
        row = dict(zip(("qry", "qry_image_path"), query, strict=True))
        row |= dict(zip(("pos_text", "pos_image_path"), document(positive), strict=True))
        rows.append({**row, "neg_text": list(texts), "neg_image_path": list(paths)})
    assert rows_of(tmp_path / "out" / "train.parquet") == rows


def no_way_back(ids, scores):
    """Captions 4 and 5 of image 2 list images 0 and 1 alone, and the captions of these nothing."""
    ids[:3], ids[3:6] = -1, [0, 1, -1, -1]


@pytest.mark.parametrize("change", [None, shorten, no_way_back])
def test_negclip(change, world, outgoing, groups, tmp_path):
    whole = outgoing("i2t", pictures=True)
    written = FORMATS["negclip"].write(outgoing("t2i", change=change, pictures=True, other=whole), tmp_path / "out")
    with (tmp_path / "out" / "train.tsv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file, delimiter="\t"))
    captions = {image: [world.texts[row] for row, _ in negatives] for image, _, negatives in groups("i2t")}
    images = {}
    for caption, positives, negatives in groups("t2i", 4, change):
        if positives and negatives:
            images[caption] = (positives[0][0], [row for row, _ in negatives])
    while gone := [one for one, (_, rows) in images.items() if not {own for own, _ in images.values()} & set(rows)]:
        for one in gone:
            del images[one]
    assert (written.rows, written.anchors_left_out) == (len(images), len(world.texts) - len(images))
    owners = [own for own, _ in images.values()]
    for row, (caption, (image, listed)) in zip(found, images.items(), strict=True):
        assert (row["title"], row["filepath"]) == (world.texts[caption], world.files[image])
        assert ast.literal_eval(row["neg_caption"]) == captions[image]
        assert ast.literal_eval(row["neg_image"]) == [owners.index(one) for one in listed if one in owners]
