"""The audit is silent on what the miner makes, and names every planted defect."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.mining.mine import mine
from aoq.pipeline.search.lists import to_arrow
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.files import content_sha256, read_chunks, read_manifest, read_unverified
from aoq.pipeline.tables.pairs import paired
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.tables.writing import list_writer, write_positives

IMAGE_OF = np.repeat(np.arange(30, dtype=np.int32), 3)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return mined(tmp_path_factory.mktemp("sound"), "onepass")


@pytest.fixture
def folder(sound, tmp_path):
    shutil.copytree(sound, tmp_path / "table")
    return tmp_path / "table"


def mined(folder, search, **options):
    rng = np.random.default_rng(2)
    images = rng.normal(size=(30, 6)).astype(np.float32)
    captions = (images[IMAGE_OF] + rng.normal(size=(90, 6))).astype(np.float32)
    captions[40:45] = captions[7]
    mine(
        Problem(images, captions, IMAGE_OF, 12, 5),
        search=search,
        provenance={"dataset": "d"},
        work=folder / "work",
        output=folder / "table",
        **options,
    )
    return folder / "table"


def rewrite(folder, direction, change, *, forged=True):
    """Change the lists; with a new sha256 in the manifest, as one who makes tables with an error would."""
    path = folder / f"{direction}.parquet"
    footer = json.loads(pq.read_schema(path).metadata[b"aoq"])
    lists = read_unverified(path)
    ids, scores, positive = (column.copy() for column in (lists.negative_ids, lists.scores, lists.positive_score))
    changed = change(ids, scores, positive)
    ids, scores, positive = changed if changed is not None else (ids, scores, positive)
    lists = replace(lists, negative_ids=ids, scores=scores, positive_score=positive)
    with list_writer(path, footer) as writer:
        writer.write_table(to_arrow(lists).cast(writer.schema))
    if forged:
        content = content_sha256(lists)
        edit(folder, lambda manifest: manifest["directions"][direction].update(sha256=content))


def edit(folder, change):
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("search", ["onepass", "faiss-flat", "faiss:IVF4,Flat|nprobe=2"])
def test_what_is_mined_is_sound(tmp_path, search):
    assert audit(mined(tmp_path, search, recall_floor=0.1)) == []


def swap(rows, *places):
    for column in rows:
        column[4, list(places)] = column[4, list(places)[::-1]]


def break_tie(ids, scores, positive):
    scores[4, 1] = scores[4, 0]
    ids[4, [0, 1]] = np.sort(ids[4, [0, 1]])[::-1]


def forget(ids, scores, positive):
    """The best negative of every anchor is left out, and the next best stand in its place."""
    for column, padding in ((ids, -1), (scores, np.nan)):
        column[:, :-1], column[:, -1] = column[:, 1:].copy(), padding


def put(column, place, value):
    def change(*columns):
        columns[column][place] = value(*columns) if callable(value) else value

    return change


BEYOND, OTHER_SCORE = put(0, (4, 3), 90), put(1, np.s_[:, 0], lambda ids, scores, _: scores[:, 0] + np.float32(1e-3))
DEFECTS = {
    r"i2t.parquet: not in order .* \(1 rows, the first is 4\)": lambda *columns: swap(columns[:2], 0, 1),
    r"i2t.parquet: not in order": break_tie,
    r"ids beyond the other side's rows": BEYOND,
    r"the same id twice": put(0, (4, 3), lambda ids, *_: ids[4, 2]),
    r"scores that are not finite": put(1, (4, 0), np.inf),
    r"real ids after padding": put(0, (4, 3), -1),
    r"an own positive among the negatives \(1 rows, the first is 4\)": put(0, (4, 0), 4 * 3 + 1),
    r"a score that differs from the other direction's": OTHER_SCORE,
    r"t2i.parquet: a pair that the other direction should list, but does not": forget,
    r"a positive score that is infinite": put(2, 4, -np.inf),
    r"holds 29 lists of 12, the manifest says 30 of 12": lambda *columns: [column[:-1] for column in columns],
    r"holds 0 lists of 12": lambda *columns: [column[:0] for column in columns],
}


@pytest.mark.parametrize("message", DEFECTS)
def test_planted_defects_of_lists_are_named(folder, message):
    rewrite(folder, "i2t", DEFECTS[message])
    assert any(re.search(message, str(finding)) for finding in audit(folder)), audit(folder)


def replace_column(path, name, change):
    rows = pq.read_table(path)
    pq.write_table(rows.set_column(rows.schema.names.index(name), name, pa.array(change(rows))), path)


def drop_certificate(folder):
    def lower(rows):
        bound = rows["bound"].to_numpy().copy()
        bound[3] = rows["last_score"][3].as_py()
        return bound

    replace_column(folder / "t2i.certificates.parquet", "bound", lower)


def more_positives(folder):
    image_of = IMAGE_OF.copy()
    image_of[read_unverified(folder / "i2t.parquet").negative_ids[4, 0]] = 4
    write_positives(folder, paired(image_of))


BESIDE = {
    r"t2i.certificates.parquet: not certified.*\(1 rows, the first is 3\)": drop_certificate,
    r"i2t.certificates.parquet: a last score that is not the table's \(30 rows": lambda folder: replace_column(
        folder / "i2t.certificates.parquet", "last_score", lambda rows: rows["last_score"].to_numpy() + 1
    ),
    r"i2t.parquet: an own positive among the negatives \(1 rows, the first is 4\)": more_positives,
    "pairs with rows that the table does not have": lambda folder: write_positives(folder, paired(IMAGE_OF + 1)),
    "not those whose sha256 the manifest gives": lambda folder: rewrite(folder, "i2t", OTHER_SCORE, forged=False),
    "its footer says dataset = 'd', the manifest 'e'": lambda folder: edit(
        folder, lambda said: said.update(dataset="e")
    ),
    "its footer says recall = None, the manifest 0.9": lambda folder: edit(
        folder, lambda old: old["directions"]["i2t"].update(recall=0.9)
    ),
    "manifest.json: it says first_score_mean = 0.99 of t2i, and the table gives": lambda folder: edit(
        folder, lambda old: old["directions"]["t2i"].update(first_score_mean=0.99)
    ),
    "manifest.json: it says certified_share = 0.5 of i2t, and the table gives 1.0": lambda folder: edit(
        folder, lambda old: old["directions"]["i2t"].update(certified_share=0.5)
    ),
    r"a score, although the manifest says that there are none \(30 rows": lambda folder: edit(
        folder, lambda old: old["directions"]["i2t"].update(scores="none")
    ),
}


@pytest.mark.parametrize("message", BESIDE)
def test_planted_defects_beside_the_lists_are_named(folder, message):
    BESIDE[message](folder)
    assert any(re.search(message, str(finding)) for finding in audit(folder)), audit(folder)


def test_what_cannot_be_read_is_said(folder):
    (folder / "i2t.certificates.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"i2t.certificates.parquet does not exist; .* mine again"):
        audit(folder)
    (folder / "positives.parquet").write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"positives.parquet is damaged"):
        audit(folder)


def test_lists_that_are_not_the_manifests_are_read_by_nothing(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    rewrite(tmp_path / "other", "i2t", BEYOND)
    with pytest.raises(ValueError, match=r"i2t.parquet lists ids that are none of the 90 candidates"):
        read_table(tmp_path / "other")
    rewrite(folder, "t2i", lambda ids, scores, positive: [ids[::-1], scores, positive], forged=False)
    with pytest.raises(ValueError, match=r"t2i.parquet does not hold the lists whose sha256 .*manifest.json gives"):
        read_table(folder)
    with pytest.raises(ValueError, match=r"does not hold the lists"):
        list(read_chunks(folder, "t2i", read_manifest(folder), 7))


def test_positives_are_those_of_the_manifest(folder):
    more_positives(folder)
    assert "positives.parquet: its pairs are not those whose sha256 the manifest gives" in map(str, audit(folder))
    with pytest.raises(ValueError, match=r"positives.parquet does not hold the pairs whose sha256 .* gives"):
        read_table(folder)
    edit(folder, lambda manifest: manifest.pop("positives_sha256"))  # as before there was one
    assert len(read_table(folder).positives) == 90
    write_positives(folder, paired(IMAGE_OF + 1))
    with pytest.raises(ValueError, match=r"pairs with rows that the table does not have"):
        read_table(folder)


@pytest.mark.parametrize(
    "content",
    [
        "null",
        "7",
        "{",
        "\udcff",
        "[" * 100_000,
        '{"directions": {}}',
        '{"format_version": 1e999}',
        '{"format_version": 1, "directions": []}',
        '{"format_version": 1, "directions": {"i2t": {"h": true}}}',
    ],
)
def test_a_manifest_of_another_kind_is_refused(folder, content):
    (folder / "manifest.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"manifest.json is damaged or not .* mine again"):
        audit(folder)
