"""The tiny world mined once, and the `aoq` command in this process."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main

ROOT = Path(__file__).parent.parent.parent
TINY = Path(__file__).parent.parent / "tiny.toml"
IMAGES, EACH = 15, 2
JPEG = b"\xff\xd8\xff\xe0"


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def refusals(text, **words):
    """The arguments and the message of each line `ARGUMENTS :: MESSAGE`; $NAME stands for several arguments."""
    cases = [line.split(" :: ", 1) for line in text.strip("\n").splitlines()]
    parts = [[words[w[1:]] if w.startswith("$") else [w] for w in shlex.split(command)] for command, _ in cases]
    return [([str(w) for part in each for w in part], case[1]) for each, case in zip(parts, cases, strict=True)]


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
def aoq(mined):
    return lambda *arguments, root=mined: run(*arguments, *(() if root is None else ("--artifact-root", root)))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Vectors, a table of them, and the texts."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("images.npy", rng.normal(size=(IMAGES, 7)).astype(np.float32))
    np.save("captions.npy", rng.normal(size=(IMAGES * EACH, 7)).astype(np.float32))
    options = ("--per-image", EACH, "--normalise", "--h-captions", 6, "--h-images", 4)
    assert run("mine", "images.npy", "captions.npy", "table", *options).exit_code == 0
    (tmp_path / "captions.txt").write_text("".join(f"caption {row}\n" for row in range(IMAGES * EACH)))
    (tmp_path / "ids.txt").write_text("".join(f"{row}.jpg\n" for row in range(IMAGES)))
    (tmp_path / "described.txt").write_text("".join(f"picture {row}\n" for row in range(IMAGES)))
    (tmp_path / "pictures").mkdir()
    for row in range(IMAGES):
        (tmp_path / "pictures" / f"{row}.jpg").write_bytes(JPEG)
    return tmp_path
