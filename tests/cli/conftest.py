"""The tiny world mined once, and the `aoq` command in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from tests.mining.conftest import unit

ROOT = Path(__file__).parent.parent.parent
TINY = Path(__file__).parent.parent / "tiny.toml"
IMAGES, EACH = 15, 2
JPEG = b"\xff\xd8\xff\xe0"
QUERIES, DOCUMENTS, ITEMS = 12, 40, 25
H = {"i2t": 6, "t2i": 4}
QRELS = [(0, 3, 2), (0, 9, 1), (1, 9, 1), (2, 5, 0), (3, 5, 1), (4, 11, 3), (4, 12, 1), (4, 13, 1), (7, 0, 1)]
PAIRS = {(query, document) for query, document, grade in QRELS if grade >= 1}
TWINS = {(0, 1), (1, 0), (1, 2), (2, 1), (8, 20), (20, 8)}
NAMED = ("--image-ids", "query_ids.txt", "--caption-ids", "document_ids.parquet::id")
CORPUS = ("--pairs", "pairs.qrels", *NAMED, "--sides", "queries", "documents")
TWIN = ("--pairs", "twins.csv", "--image-ids", "item_ids.txt")
DEPTHS = ("--h-captions", 6, "--h-images", 4)


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def only(root, stage):
    """The folder of the only artefact of a stage."""
    return next(path.parent for path in (root / stage).glob("*/MANIFEST.json"))


@pytest.fixture(scope="session")
def mined(tmp_path_factory):
    """An artifact root with the tiny experiment's table."""
    root = tmp_path_factory.mktemp("mined")
    command = [Path(sys.executable).parent / "luigi", "--module", "tasks", "HardNegatives", "--experiment", str(TINY)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = ["--artifact-root", str(root), "--engine-threads", "1"]
    subprocess.run([*command, *arguments], cwd=ROOT, env=environment, check=True, timeout=300)
    return root


@pytest.fixture
def folder(mined):
    return only(mined, "hard_negatives") / "table"


@pytest.fixture
def world(mined):
    return only(mined, "world")


@pytest.fixture
def embeddings(mined):
    return only(mined, "embeddings")


@pytest.fixture
def aoq(mined):
    return lambda *arguments, root=mined: run(*arguments, *(() if root is None else ("--artifact-root", root)))


def write_files(folder):
    """Vectors, a table of them, and the texts, in the current directory."""
    rng = np.random.default_rng(0)
    np.save("images.npy", rng.normal(size=(IMAGES, 7)).astype(np.float32))
    np.save("captions.npy", rng.normal(size=(IMAGES * EACH, 7)).astype(np.float32))
    options = ("--per-image", EACH, "--normalise", "--h-captions", 6, "--h-images", 4)
    assert run("mine", "images.npy", "captions.npy", "table", *options).exit_code == 0
    (folder / "captions.txt").write_text("".join(f"caption {row}\n" for row in range(IMAGES * EACH)))
    (folder / "ids.txt").write_text("".join(f"{row}.jpg\n" for row in range(IMAGES)))
    (folder / "described.txt").write_text("".join(f"picture {row}\n" for row in range(IMAGES)))
    (folder / "pictures").mkdir()
    for row in range(IMAGES):
        (folder / "pictures" / f"{row}.jpg").write_bytes(JPEG)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    return tmp_path


def write_corpus():
    """Vectors, ids, texts, judgements; `corpus`, a table of two sides, and `set`, one of one set."""
    rng = np.random.default_rng(0)
    for name, rows in (("query", QUERIES), ("document", DOCUMENTS), ("item", ITEMS)):
        np.save(f"{name}.npy", unit(rng, rows, 6))
        Path(f"{name}_ids.txt").write_text("".join(f"{name[0]}{row}\n" for row in range(rows)))
        Path(f"{name}.txt").write_text("".join(f"text of {name} {row}\n" for row in range(rows)))
    pq.write_table(pa.table({"id": [f"d{row}" for row in range(DOCUMENTS)]}), "document_ids.parquet")
    lines = (f"q{query} 0 d{document} {grade}\n" for query, document, grade in QRELS)
    Path("pairs.qrels").write_text("".join(lines))
    Path("twins.csv").write_text("left,right\ni0,i1\ni2,i1\ni8,i20\ni5,i5\n")
    done = run("mine", "query.npy", "document.npy", "corpus", *CORPUS, *DEPTHS)
    assert done.exit_code == 0, done.output
    done = run("mine", "item.npy", "set", *TWIN, *DEPTHS[:2])
    assert done.exit_code == 0, done.output
    assert done.stdout == "i2t: 25 lists of 6, exact, 100.00% certified\nset\n"
