"""A table with pictures, exported as users do, and the libraries that read it.

Each picture is of one colour, so what a model sees of it says whose it is. Readers that pip would install with much
that nobody needs here lie in a folder of their own, without their dependencies: `reader` takes one module of theirs.
"""

import importlib
import re
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from aoq.pipeline.tables.table import read_table
from tests.cli.conftest import EACH, IMAGES, PICTURES, TEXTS, VECTORS, run  # noqa: F401  (names of the tests)
from tests.prepare.conftest import save_clip

DEPTHS = {"i2t": 6, "t2i": 4}
READERS = Path(sys.prefix) / "readers"


@pytest.fixture(scope="session", autouse=True)
def datasets(tmp_path_factory):
    """The library `datasets`, with its own cache and without network."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("HF_HOME", str(tmp_path_factory.mktemp("hub")))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("MODELSCOPE_CACHE", str(tmp_path_factory.mktemp("modelscope")))
        import datasets

        yield datasets


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """Vectors, a table, captions, ids without an ending, pictures of colour 16 n."""
    from PIL import Image

    folder, rng = tmp_path_factory.mktemp("world"), np.random.default_rng(0)
    np.save(folder / "images.npy", rng.normal(size=(IMAGES, 7)).astype(np.float32))
    np.save(folder / "captions.npy", rng.normal(size=(IMAGES * EACH, 7)).astype(np.float32))
    captions = [f"a caption of image {row // EACH}, {row % EACH}" for row in range(IMAGES * EACH)]
    described = [f"picture {row}" for row in range(IMAGES)]
    ids = [f"photo_{row}" for row in range(IMAGES)]
    for name, lines in (("captions", captions), ("described", described), ("ids", ids)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    (folder / "pictures").mkdir()
    pictures = [str(folder / "pictures" / f"{name}.png") for name in ids]
    for row, path in enumerate(pictures):
        Image.new("RGB", (32, 24), (16 * row,) * 3).save(path)
    depths = ("--h-captions", DEPTHS["i2t"], "--h-images", DEPTHS["t2i"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("mine", "images.npy", "captions.npy", "table", "--per-image", EACH, "--normalise", *depths)
    table = read_table(folder / "table")
    texts = {"captions": captions, "described": described}
    return SimpleNamespace(folder=folder, table=table, ids=ids, pictures=pictures, **texts)


@pytest.fixture
def export(world, tmp_path, monkeypatch):
    """`aoq export`, to a folder beside which the test then stands: its README names it."""

    def make(name, direction, *options):
        monkeypatch.chdir(world.folder)
        output = tmp_path / f"{name}-{direction}"
        given = () if direction is None else ("--direction", direction)
        run("export", "table", output, "--format", name, *given, *options)
        monkeypatch.chdir(tmp_path)
        return output

    return make


@pytest.fixture
def loaded():
    """Run the Python lines of an export's README as they stand; return their names."""

    def load(folder):
        block = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
        names = {}
        exec(block[1], names)
        return SimpleNamespace(**names)

    return load


def load_reader(name):
    """One module of a reader, without what the packages above it import."""
    if not (READERS / name.split(".")[0]).is_dir():
        pytest.fail(f"{name} is not in {READERS}: `make test-exports` installs it")
    packages = name.split(".")[:-1]
    for depth in range(1, len(packages) + 1):
        package = ModuleType(".".join(packages[:depth]))
        package.__path__ = [str(READERS.joinpath(*packages[:depth]))]
        sys.modules.setdefault(package.__name__, package)
    module = importlib.import_module(name)
    vars(sys.modules[module.__package__]).update(vars(module))  # the names that a README imports from there
    return module


@contextmanager
def readers_forgotten(*others):
    """Afterwards no reader is loaded, nor what is below the packages named."""
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if (READERS / name.split(".")[0]).is_dir() or name.startswith(others):
            del sys.modules[name]


@pytest.fixture
def reader():
    with readers_forgotten():
        yield load_reader


def colour(picture):
    """The row of the image that a picture shows, by its colour."""
    return int(np.asarray(picture)[0, 0, 0]) // 16


def shown(world, *values):
    """The rows whose pictures, captions or descriptions these are."""
    texts = {text: row for texts in (world.captions, world.described) for row, text in enumerate(texts)}
    return [texts[value] if isinstance(value, str) else colour(value) for value in values]


def groups(world, direction):
    """The row of each pair's anchor, its positive, and its list."""
    for caption in range(len(world.captions)):
        anchor, own = (caption, caption // EACH) if direction == "t2i" else (caption // EACH, caption)
        yield anchor, own, world.table[direction].negative_ids[anchor].tolist()


@pytest.fixture(scope="session")
def clip(tmp_path_factory):
    """A tiny random CLIP, saved as a folder."""
    folder = tmp_path_factory.mktemp("clip")
    save_clip(folder, model_max_length=8)
    return folder
