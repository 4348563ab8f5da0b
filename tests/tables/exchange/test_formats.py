"""Every format, against loops over its definition, both directions, whole lists and short ones."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.search.problem import DIRECTIONS
from aoq.pipeline.tables.exchange import parquet as files
from aoq.pipeline.tables.exchange.formats import FORMATS
from aoq.pipeline.tables.exchange.outgoing import Names


def shorten(ids, scores):
    """The first negative of anchor 1 is gone, all but one of anchor 2's, and all of anchor 3's."""
    ids[1, 0] = ids[2, 1:] = ids[3] = -1


@pytest.fixture(params=DIRECTIONS)
def direction(request):
    return request.param


@pytest.fixture
def texts(world, direction):
    return (world.described, world.texts) if direction == "i2t" else (world.texts, world.described)


def triplets(groups, depth):
    for anchor, positives, negatives in groups:
        for positive in positives:
            for negative in negatives:
                yield {"anchor": anchor, "positive": positive, "negative": negative}, [positive, negative]


def tuples(groups, depth):
    for anchor, positives, negatives in groups:
        for positive in positives:
            if len(negatives) == depth:
                named = {f"negative_{place}": negative for place, negative in enumerate(negatives, start=1)}
                yield {"anchor": anchor, "positive": positive, **named}, [positive, *negatives]


def labeled_pairs(groups, depth):
    for anchor, positives, negatives in groups:
        for label, documents in ((1, positives), (0, negatives if positives else [])):
            for document in documents:
                yield {"anchor": anchor, "positive": document, "label": label}, document


def labeled_lists(groups, depth):
    for anchor, positives, negatives in groups:
        for positive in positives:
            if negatives:
                documents = [positive, *negatives]
                yield {"anchor": anchor, "positive": documents, "labels": [1] + [0] * len(negatives)}, documents


SLOW = {
    "triplet": (triplets, "scores"),
    "n-tuple": (tuples, "scores"),
    "labeled-pair": (labeled_pairs, "score"),
    "labeled-list": (labeled_lists, "scores"),
}


def said(value, anchors, candidates):
    """Texts in place of rows."""
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return [candidates[row] for row, _ in value]
    return candidates[value[0]] if isinstance(value, tuple) else value


def scores_of(value):
    return [score for _, score in value] if isinstance(value, list) else value[1]


@pytest.mark.parametrize("change", [None, shorten], ids=["whole", "short"])
@pytest.mark.parametrize("scored", [False, True])
@pytest.mark.parametrize("name", SLOW)
def test_sentence_transformers(name, scored, change, direction, outgoing, groups, texts, tmp_path):
    build, score_column = SLOW[name]
    rows = []
    for row, documents in build(groups(direction, 4, change), 4):
        row = {key: texts[0][value] if key == "anchor" else said(value, *texts) for key, value in row.items()}
        if scored:
            row = {key: value for key, value in row.items() if not key.startswith("label")}
            row[score_column] = scores_of(documents)
        rows.append(row)
    written = FORMATS[name].write(outgoing(direction, scored=scored, change=change), tmp_path / "out")
    found = pq.read_table(tmp_path / "out" / "train.parquet")
    assert found.to_pylist() == rows
    assert found.column_names == list(rows[0])
    kept = {row["anchor"] for row in rows}
    assert (written.rows, written.anchors_left_out) == (len(rows), len(texts[0]) - len(kept))


def test_rows_are_written_in_groups_that_fit_into_memory(outgoing, tmp_path, monkeypatch):
    FORMATS["triplet"].write(outgoing("t2i"), tmp_path / "one")
    monkeypatch.setattr(files, "GROUP_BYTES", 1)
    FORMATS["triplet"].write(outgoing("t2i"), tmp_path / "many")
    one, many = (tmp_path / name / "train.parquet" for name in ("one", "many"))
    assert pq.ParquetFile(one).num_row_groups == 1
    assert pq.ParquetFile(many).num_row_groups == 4
    assert pq.read_table(one).equals(pq.read_table(many))


@pytest.mark.parametrize("change", [None, shorten], ids=["whole", "short"])
def test_pylate(change, direction, world, outgoing, groups, tmp_path):
    ids = {"i2t": world.ids, "t2i": [str(row) for row in range(len(world.texts))]}
    anchors, candidates = (ids["i2t"], ids["t2i"]) if direction == "i2t" else (ids["t2i"], ids["i2t"])
    rows = [
        {"query_id": anchors[row["anchor"]], "document_ids": said(documents, None, candidates), "scores": scores}
        for row, documents in tuples(groups(direction, 4, change), 4)
        for scores in [scores_of(documents)]
    ]
    written = FORMATS["pylate"].write(outgoing(direction, scored=True, change=change), tmp_path / "out")
    assert pq.read_table(tmp_path / "out" / "train.parquet").to_pylist() == rows
    assert written.rows == len(rows)
    assert written.anchors_left_out == len(anchors) - len({row["query_id"] for row in rows})
    texts = {"queries": ("query_id", direction), "documents": ("document_id", "t2i" if direction == "i2t" else "i2t")}
    for table, (column, side) in texts.items():
        names = world.names[side]
        expected = [{column: name, "text": text} for name, text in zip(names.ids, names.values, strict=True)]
        assert pq.read_table(tmp_path / "out" / f"{table}.parquet").to_pylist() == expected


@pytest.mark.parametrize("change", [None, shorten], ids=["whole", "short"])
@pytest.mark.parametrize("scored", [False, True])
def test_flagembedding(scored, change, direction, outgoing, groups, texts, tmp_path):
    lines = []
    for anchor, positives, negatives in groups(direction, 4, change):
        if positives and negatives:
            line = {"query": texts[0][anchor], "pos": said(positives, *texts), "neg": said(negatives, *texts)}
            scores = {"pos_scores": scores_of(positives), "neg_scores": scores_of(negatives)} if scored else {}
            lines.append({**line, **scores})
    written = FORMATS["flagembedding"].write(outgoing(direction, scored=scored, change=change), tmp_path / "out")
    assert lines_of(tmp_path / "out" / "train.jsonl") == lines
    assert (written.rows, written.anchors_left_out) == (len(lines), len(texts[0]) - len(lines))


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("change", [None, shorten], ids=["whole", "short"])
def test_trec(change, direction, world, outgoing, groups, tmp_path):
    ids = [world.names[one].ids for one in (("i2t", "t2i") if direction == "i2t" else ("t2i", "i2t"))]
    lines = [
        (ids[0][anchor], "Q0", ids[1][row], str(place), score, "aoq")
        for anchor, _, negatives in groups(direction, 4, change)
        for place, (row, score) in enumerate(negatives, start=1)
    ]
    written = FORMATS["trec"].write(outgoing(direction, change=change), tmp_path / "run")
    found = [line.split(" ") for line in (tmp_path / "run" / f"{direction}.trec").read_text().splitlines()]
    assert [(*fields[:4], np.float32(fields[4]), fields[5]) for fields in found] == lines
    assert (written.rows, written.anchors_left_out) == (len(lines), 1 if change else 0)


def test_official_lists(direction, outgoing, groups, tmp_path):
    FORMATS["aoq"].write(outgoing(direction), tmp_path / "f30k")
    found = np.load(tmp_path / "f30k" / f"{direction}_f30k.npy")
    assert found.dtype == np.int32
    assert found.tolist() == [[row for row, _ in negatives] for _, _, negatives in groups(direction)]
    with pytest.raises(ValueError, match=r"anchor \d has \d negatives, and the official lists have no padding"):
        FORMATS["aoq"].write(outgoing(direction, change=shorten), tmp_path / "short")


def test_an_id_with_a_space_has_no_place_in_a_run(world, outgoing, tmp_path):
    names = Names(["a b", *world.ids[1:]], world.ids)
    one = replace(outgoing("i2t"), anchors=names)
    with pytest.raises(ValueError, match="'a b' cannot be an id in a TREC run"):
        FORMATS["trec"].write(one, tmp_path / "run")
