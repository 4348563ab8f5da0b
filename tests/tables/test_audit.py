"""The audit names every planted defect."""

import json
import re
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.search.lists import from_arrow, to_arrow
from aoq.pipeline.search.positives import matching_pairs
from aoq.pipeline.search.problem import Problem
from aoq.pipeline.tables.audit import audit
from aoq.pipeline.tables.files import content_sha256, read_chunks, read_manifest
from aoq.pipeline.tables.table import read_table
from aoq.pipeline.tables.writing import list_writer, write_positives
from tests.mining.conftest import world_of_pairs
from tests.search.problems import mined

IMAGE_OF = np.repeat(np.arange(30, dtype=np.int32), 3)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    mined(Problem(*world_of_pairs(2), 12, 5), folder, "onepass")
    return folder / "table"


@pytest.fixture
def folder(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "table")


def said(folder):
    """What the audit finds, or the sentence with which it refuses to read the table."""
    try:
        return "\n".join(audit(folder))
    except (ValueError, OSError) as error:
        return str(error)


def rewrite(folder, direction, change, *, forged=True):
    """Change the lists; with a new sha256 in the manifest, as one who makes tables with an error would."""
    path = folder / f"{direction}.parquet"
    footer, lists = json.loads(pq.read_schema(path).metadata[b"aoq"]), from_arrow(pq.read_table(path))
    columns = [column.copy() for column in (lists.negative_ids, lists.scores, lists.positive_score)]
    ids, scores, positive = change(*columns) or columns
    lists = replace(lists, negative_ids=ids, scores=scores, positive_score=positive)
    with list_writer(path, footer) as writer:
        writer.write_table(to_arrow(lists).cast(writer.schema))
    if forged:
        edit(direction, sha256=content_sha256(lists))(folder)


def edit(direction=None, **change):
    """Change the manifest, or what it says of a direction; None takes a key away."""

    def apply(folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        about = manifest if direction is None else manifest["directions"][direction]
        about.update(change)
        for key in [key for key in about if about[key] is None]:
            del about[key]
        (folder / "manifest.json").write_text(json.dumps(manifest))

    return apply


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


def certificates(direction, name, change):
    def apply(folder):
        path = folder / f"{direction}.certificates.parquet"
        rows = pq.read_table(path)
        columns = {name: rows[name].to_numpy().copy() for name in ("last_score", "bound")}
        change(columns)
        pq.write_table(rows.set_column(rows.schema.names.index(name), name, pa.array(columns[name])), path)

    return apply


def uncertify(columns):
    columns["bound"][3] = columns["last_score"][3]


def raise_scores(columns):
    columns["last_score"] += 1


def more_positives(folder):
    image_of = IMAGE_OF.copy()
    image_of[from_arrow(pq.read_table(folder / "i2t.parquet")).negative_ids[4, 0]] = 4
    write_positives(folder, matching_pairs(image_of))


LISTS = {
    r"i2t.parquet: not in order .* \(1 rows, the first is 4\)": lambda *columns: swap(columns[:2], 0, 1),
    r"i2t.parquet: not in order": break_tie,
    r"i2t.parquet lists ids that are not among the 90 candidates": put(0, (4, 3), 90),
    r"the same id twice": put(0, (4, 3), lambda ids, *_: ids[4, 2]),
    r"scores that are not finite": put(1, (4, 0), np.inf),
    r"real ids after padding": put(0, (4, 3), -1),
    r"an own positive among the negatives \(1 rows, the first is 4\)": put(0, (4, 0), 4 * 3 + 1),
    r"a score that differs from the other direction's": put(
        1, np.s_[:, 0], lambda ids, scores, _: scores[:, 0] + np.float32(1e-3)
    ),
    r"t2i.parquet: a pair that the other direction should list, but does not": forget,
    r"a positive score that is infinite": put(2, 4, -np.inf),
    r"t2i.parquet lists ids that are not among the 29 candidates": lambda *columns: [column[:-1] for column in columns],
}
DEFECTS = {message: partial(rewrite, direction="i2t", change=change) for message, change in LISTS.items()} | {
    r"t2i.certificates.parquet: not certified.* \(1 rows, the first is 3\)": certificates("t2i", "bound", uncertify),
    r"last score that is not the table's \(30 rows": certificates("i2t", "last_score", raise_scores),
    r"positives.parquet holds pairs that do not match their sha256 in .*manifest.json": more_positives,
    r"its footer says dataset = 'd', the manifest 'e'": edit(dataset="e"),
    r"its footer says recall = None, the manifest 0.9": edit("i2t", recall=0.9),
    r"i2t.parquet: holds 30 lists of 12, the manifest says 31 of 12": edit("i2t", anchors=31),
    r"manifest.json: it says first_score_mean = 0.99 for t2i, but the table gives": edit("t2i", first_score_mean=0.99),
    r"manifest.json: it says certified_share = 0.5 for i2t, but the table gives 1.0": edit("i2t", certified_share=0.5),
    r"a score, although the manifest says that there are none \(30 rows": edit("i2t", scores="none"),
    r"lacks \['guarantee'\] for i2t: it is damaged, or was written by an older version": edit("i2t", guarantee=None),
    r"certificates.parquet does not exist; .* mine again": lambda folder: (
        folder / "i2t.certificates.parquet"
    ).unlink(),
    r"positives.parquet is damaged": lambda folder: (folder / "positives.parquet").write_bytes(b"nothing"),
}


@pytest.mark.parametrize("message", DEFECTS)
def test_planted_defects_are_named(folder, message):
    DEFECTS[message](folder)
    assert re.search(message, said(folder)), said(folder)


def test_a_table_in_memory_is_checked_too(sound):
    table = read_table(sound)
    ids = table.i2t.negative_ids.copy()
    ids[4, 3] = 90
    found = audit(replace(table, i2t=replace(table.i2t, negative_ids=ids)))
    assert found == ["i2t.parquet: ids beyond the other side's rows, or below -1 (1 rows, the first is 4)"]
    found = audit(replace(table, positives=matching_pairs(IMAGE_OF + 1)))
    assert found == ["positives.parquet: pairs with rows that the table does not have (3 rows, the first is 87)"]


def test_files_that_are_not_the_manifests_are_read_by_nothing(folder):
    more_positives(folder)
    with pytest.raises(ValueError, match=r"positives.parquet holds pairs that do not match their sha256"):
        read_table(folder)
    edit(positives_sha256=None)(folder)  # as before there was one
    assert len(read_table(folder).positives) == 90
    rewrite(folder, "t2i", lambda ids, scores, positive: [ids[::-1], scores, positive], forged=False)
    message = r"t2i.parquet holds lists that do not match their sha256 in .*manifest.json"
    with pytest.raises(ValueError, match=message):
        read_table(folder)
    with pytest.raises(ValueError, match=message):
        list(read_chunks(folder, "t2i", read_manifest(folder), 7))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, "is damaged or not .* mine again") for content in ("null", "\udcff", '{"directions": {}}')),
        ('{"format_version": 1, "directions": {"i2t": {"h": true}}}', "is damaged or not .* mine again"),
        ('{"format_version": 1, "sides": ["a", "b", "c"]}', "names the sides .* but a table has two or one set"),
        ('{"format_version": 1, "sides": "queries"}', "sides: input should be a valid list"),
    ],
)
def test_a_manifest_of_another_kind_is_refused(folder, content, message):
    (folder / "manifest.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=message):
        audit(folder)
