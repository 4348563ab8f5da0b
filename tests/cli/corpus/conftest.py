"""A corpus of queries and documents, and one set: vectors, ids, texts, judgements, and tables of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import run as aoq

QUERIES, DOCUMENTS, ITEMS = 12, 40, 25
H = {"i2t": 6, "t2i": 4}
QRELS = [(0, 3, 2), (0, 9, 1), (1, 9, 1), (2, 5, 0), (3, 5, 1), (4, 11, 3), (4, 12, 1), (4, 13, 1), (7, 0, 1)]
PAIRS = {(query, document) for query, document, grade in QRELS if grade >= 1}
TWINS = {(0, 1), (1, 0), (1, 2), (2, 1), (8, 20), (20, 8)}
NAMED = ("--image-ids", "query_ids.txt", "--caption-ids", "document_ids.parquet::id")
CORPUS = ("--pairs", "pairs.qrels", *NAMED, "--sides", "queries", "documents")
TWIN = ("--pairs", "twins.csv", "--image-ids", "item_ids.txt")
DEPTHS = ("--h-captions", 6, "--h-images", 4)


def unit(rng, rows):
    vectors = rng.normal(size=(rows, 6))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="session")
def mined(tmp_path_factory):
    """Vectors, ids, texts, judgements; `corpus`, a table of two sides, and `set`, one of one set."""
    folder, rng = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, rows in (("query", QUERIES), ("document", DOCUMENTS), ("item", ITEMS)):
            np.save(f"{name}.npy", unit(rng, rows))
            Path(f"{name}_ids.txt").write_text("".join(f"{name[0]}{row}\n" for row in range(rows)))
            Path(f"{name}.txt").write_text("".join(f"text of {name} {row}\n" for row in range(rows)))
        ids = pa.table({"id": [f"d{row}" for row in range(DOCUMENTS)]})
        pq.write_table(ids, "document_ids.parquet")
        lines = "".join(f"q{query} 0 d{document} {grade}\n" for query, document, grade in QRELS)
        Path("pairs.qrels").write_text(lines)
        Path("twins.csv").write_text("left,right\ni0,i1\ni2,i1\ni8,i20\ni5,i5\n")
        done = aoq("mine", "query.npy", "document.npy", "corpus", *CORPUS, *DEPTHS)
        assert done.exit_code == 0, done.output
        done = aoq("mine", "item.npy", "set", *TWIN, *DEPTHS[:2])
        assert done.exit_code == 0, done.output
        assert done.stdout == "i2t: 25 lists of 6, exact, 100.00% certified\nset\n"
    return folder


@pytest.fixture
def files(mined, tmp_path, monkeypatch):
    shutil.copytree(mined, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
