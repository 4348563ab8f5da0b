"""The tiny world mined once, and the `aoq` command in this process."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from tests.mining.conftest import unit
from tests.stages.conftest import MINING, chain_of, make_stage

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
PICTURES = ("--captions", "captions.txt", "--image-ids", "ids.txt", "--image-root", "pictures")
TEXTS = (*PICTURES[:4], "--image-texts", "described.txt")
VECTORS = ("--vectors", "images.npy", "captions.npy")


def run(*arguments, code=0):
    """Run a command, which is to end with this code."""
    ended = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert ended.exit_code == code, ended.output
    return ended


def only(root, stage):
    """The folder of the only artefact of a stage."""
    return next(path.parent for path in (root / stage).glob("*/MANIFEST.json"))


@pytest.fixture(scope="session")
def mined(tmp_path_factory):
    """An artifact root with the tiny experiment's table, and the links that Luigi would make."""
    root = tmp_path_factory.mktemp("mined")
    chain = chain_of(root=root)
    for stage in ("world", *MINING):
        make_stage(chain, stage)
        chain[stage].link(root / "runs" / "tiny" / stage)
    return root


@pytest.fixture
def root(mined, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(mined, tmp_path / "root", symlinks=True)


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
    return lambda *arguments, root=mined, code=0: run(*arguments, "--artifact-root", root, code=code)


def write_files():
    """Vectors, texts and judgements in the current directory; `table` and `corpus`, of two sides, and `set`, of one."""
    rng = np.random.default_rng(0)
    np.save("images.npy", rng.normal(size=(IMAGES, 7)).astype(np.float32))
    np.save("captions.npy", rng.normal(size=(IMAGES * EACH, 7)).astype(np.float32))
    options = ("--per-image", EACH, "--normalise", "--h-captions", 6, "--h-images", 4)
    run("mine", "images.npy", "captions.npy", "table", *options)
    Path("captions.txt").write_text("".join(f"caption {row}\n" for row in range(IMAGES * EACH)))
    Path("ids.txt").write_text("".join(f"{row}.jpg\n" for row in range(IMAGES)))
    Path("described.txt").write_text("".join(f"picture {row}\n" for row in range(IMAGES)))
    Path("pictures").mkdir()
    for row in range(IMAGES):
        Path("pictures", f"{row}.jpg").write_bytes(JPEG)
    rng = np.random.default_rng(0)
    for name, rows in (("query", QUERIES), ("document", DOCUMENTS), ("item", ITEMS)):
        np.save(f"{name}.npy", unit(rng, rows, 6))
        Path(f"{name}_ids.txt").write_text("".join(f"{name[0]}{row}\n" for row in range(rows)))
        Path(f"{name}.txt").write_text("".join(f"text of {name} {row}\n" for row in range(rows)))
    pq.write_table(pa.table({"id": [f"d{row}" for row in range(DOCUMENTS)]}), "document_ids.parquet")
    lines = (f"q{query} 0 d{document} {grade}\n" for query, document, grade in QRELS)
    Path("pairs.qrels").write_text("".join(lines))
    Path("twins.csv").write_text("left,right\ni0,i1\ni2,i1\ni8,i20\ni5,i5\n")
    run("mine", "query.npy", "document.npy", "corpus", *CORPUS, *DEPTHS)
    done = run("mine", "item.npy", "set", *TWIN, *DEPTHS[:2])
    assert done.stdout == "i2t: 25 lists of 6, exact, 100.00% certified\nset\n"


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """A folder with what `write_files` writes."""
    folder = tmp_path_factory.mktemp("written")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files()
    return folder


@pytest.fixture
def files(written, tmp_path, monkeypatch):
    """A copy of what `write_files` writes, where commands run."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(written, tmp_path, dirs_exist_ok=True)
