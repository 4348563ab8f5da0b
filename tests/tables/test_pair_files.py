"""Files of pairs: each format says the same, many-to-many, by row and by id, graded or not; and what is refused."""

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aoq.pipeline.tables.pairs import COLUMN_PAIRS, TABLE_SUFFIXES, Known, find_rows, read_pair_file
from aoq.pipeline.tables.screens.judgements import write_pairs

QUERIES, DOCUMENTS = 7, 12
IDS = [f"q{row}" for row in range(QUERIES)], [f"0{row}" for row in range(DOCUMENTS)]
ROWS = Known("image", QUERIES), Known("caption", DOCUMENTS)
NAMED = Known("image", QUERIES, IDS[0]), Known("caption", DOCUMENTS, IDS[1])


def write(path, rows, names):
    if path.suffix in TABLE_SUFFIXES:
        write_pairs(path, pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))))
        if path.stem == "semicolons":
            path.write_text(path.read_text().replace(",", ";"))
    else:
        path.write_text("".join(f"{row[0]} 0 {row[1]} {row[2]}\n" for row in rows))
    return path


def pairs_of(found):
    return [tuple(pair) for pair in found.tolist()]


@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11), st.integers(-1, 3)), min_size=1, max_size=30),
    least=st.sampled_from([None, 0.0, 2.0]),
    columns=st.sampled_from([*COLUMN_PAIRS]),
    grade=st.sampled_from(["grade", "score", "relevance", "label"]),
    by_id=st.booleans(),
)
def test_all_formats_say_the_same_pairs(rows, least, columns, grade, by_id, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    given = [(IDS[0][q], IDS[1][d], g) for q, d, g in rows] if by_id else rows
    expected = [(q, d) for q, d, g in rows if g >= (1 if least is None else least)]
    for name in ("a.parquet", "a.jsonl", "a.csv", "a.tsv", "a.qrels", "a.txt", "headless.trec"):
        path = write(folder / name, given, (*columns, grade))
        if expected:
            assert pairs_of(read_pair_file(path, *(NAMED if by_id else ROWS), least)) == expected
        else:
            with pytest.raises(ValueError, match=r"no pair has a grade of at least .*; lower --min-grade"):
                read_pair_file(path, *(NAMED if by_id else ROWS), least)
    for name in ("b.parquet", "b.jsonl", "b.csv", "b.tsv", "semicolons.csv"):
        path = write(folder / name, [row[:2] for row in given], columns)
        assert pairs_of(read_pair_file(path, *(NAMED if by_id else ROWS))) == [row[:2] for row in rows]
    np.save(folder / "b.npy", [row[:2] for row in rows])
    assert pairs_of(read_pair_file(folder / "b.npy", *ROWS)) == [row[:2] for row in rows]


def test_other_ways_to_say_pairs(tmp_path):
    """Judgements with tabs, ids that are whole numbers (also as floats), and the image of each caption."""
    (tmp_path / "qrels.train.tsv").write_text("3\t0\t4\t1\n3\t0\t5\t0\n")
    assert pairs_of(read_pair_file(tmp_path / "qrels.train.tsv", *ROWS)) == [(3, 4)]
    known = Known("image", 2, ["800", "900"]), ROWS[1]
    for ids in ([900, 800], [900.0, 800.0]):
        pairs = pa.table({"query_id": ids, "document_id": [3.0, 4.0]})
        pq.write_table(pairs, tmp_path / "pairs.parquet")
        csv.write_csv(pairs, tmp_path / "pairs.csv")
        (tmp_path / "dotted.csv").write_text(f"query_id,document_id\n{ids[0]},3.0\n{ids[1]},4.0\n")
        for name in ("pairs.parquet", "pairs.csv", "dotted.csv"):
            assert pairs_of(read_pair_file(tmp_path / name, *known)) == [(1, 3), (0, 4)]
    np.save(tmp_path / "pairs.npy", np.array([0, -1, 3]))
    assert read_pair_file(tmp_path / "pairs.npy", *ROWS).tolist() == [0, -1, 3]


HEAD, GRADED = "query_id,document_id\n", "query_id,document_id,grade\n"
TWICE = Known("image", 2, ["x", "x"]), NAMED[1]


@pytest.mark.parametrize(
    ("name", "content", "known", "message"),
    [
        ("a.csv", f"{HEAD}q1,00\nx,01\n", NAMED, "pair 1 names image 'x', which is not among the 7 ids of images"),
        ("a.csv", f"{HEAD}1,2\n1,12\n", ROWS, "pair 1 names caption '12', but there are captions 0 to 11"),
        ("a.csv", f"{HEAD}q1,2\n", ROWS, "column 'query_id' has type string, and int64 is needed"),
        ("a.csv", f"{GRADED}1,2,high\n", ROWS, "column 'grade' has type string, and double is needed"),
        ("a.csv", f"{GRADED}1,2,inf\n", ROWS, "the grade of pair 0 is not a number"),
        ("a.csv", "query,document\n1,2\n", ROWS, r"its columns are \['query', 'document'\]\); it needs two columns"),
        ("a.csv", HEAD, ROWS, "a.csv has no pair; give --unpaired"),
        ("a.csv", f"{HEAD}0.5,1\n", ROWS, r"Float value 0\.50* was truncated converting to int64"),
        ("a.csv", f"{HEAD}0,1\nü".encode("latin-1"), ROWS, r"^\S*a.csv:3: byte 1 \(0xfc\) is not UTF-8"),
        ("a.csv", f"{HEAD}x,00\n", TWICE, "images 0 and 1 both have"),
        ("a.jsonl", '{"query_id": 1', ROWS, "a.jsonl is damaged or not pairs"),
        ("a.jsonl", '{"left": 1, "right": 2}\n{"left": 1}\n', ROWS, "1 values of column 'right' are empty"),
        ("a.qrels", "1 0 2\n", ROWS, "a.qrels:1: 3 fields where judgements have 4"),
        ("a.qrels", "1 0 2 1\n1 0 2 high\n", ROWS, "a.qrels:2: the grade 'high' is not a number"),
        ("a.xml", "", ROWS, "a.xml should pair images with captions, in one of .npy, .parquet"),
    ],
)
def test_what_says_no_pairs_is_refused(tmp_path, name, content, known, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        read_pair_file(tmp_path / name, *known)


def test_a_least_grade_needs_grades(tmp_path):
    (tmp_path / "a.csv").write_text("query_id,document_id\n1,2\n")
    np.save(tmp_path / "a.npy", np.array([[1, 2]]))
    for name in ("a.csv", "a.npy"):
        with pytest.raises(ValueError, match=f"{name} has no grades, .* leave out --min-grade"):
            read_pair_file(tmp_path / name, *ROWS, 2.0)


def test_only_short_whole_floats_are_read_as_ids():
    known = Known("image", 2, ["12", "9007199254740992"])
    assert find_rows("p.csv", known, ["12.0"]).tolist() == [0]
    for name in ("v12.0", "9007199254740992.0"):  # the second may have been rounded
        with pytest.raises(ValueError, match="which is not among the 2 ids of images"):
            find_rows("p.csv", known, [name])
