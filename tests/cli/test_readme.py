"""README.md's commands for your own vectors run as they stand, and need no vectors of norm 1."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import EACH
from tests.cli.conftest import run as invoke

README = Path(__file__).parent.parent.parent / "README.md"
SMALL = ("--h-captions", "6", "--h-images", "4")


def run(*arguments):
    shown = invoke(*arguments)
    assert shown.exit_code == 0, shown.output
    return shown


def test_the_commands_run(files):
    shutil.rmtree("table")
    shutil.move("pictures", "photos")
    section = README.read_text(encoding="utf-8").partition("## Mine your own vectors\n")[2]
    commands = [line.partition("#")[0].split() for line in section.split("```")[1].strip().splitlines()]
    assert [command[:2] for command in commands] == [["aoq", name] for name in ("mine", "inspect", "screen", "export")]
    for _, name, *arguments in commands:
        small = {"5": str(EACH), "17": "7"}
        run(name, *(small.get(word, word) for word in arguments), *(SMALL if name == "mine" else ()))
    captions = pq.read_table("negatives/captions.parquet")
    assert captions["text"].to_pylist()[3] == "caption 3"


@pytest.mark.parametrize("side", ["image", "caption"])
def test_a_screen_compares_by_cosine(files, side):
    vectors = np.load(f"{side}s.npy")
    np.save("unit.npy", vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    for name, given in (("as-they-are", f"{side}s.npy"), ("unit", "unit.npy")):
        run("screen", "table", name, f"--{side}-similarity", 0.3, f"--{side}-vectors", given)
    for direction in ("i2t", "t2i"):
        found, expected = (pq.read_table(f"{name}/{direction}.parquet") for name in ("as-they-are", "unit"))
        assert found["flags"].equals(expected["flags"])
    assert any(any(flags) for flags in expected["flags"].to_pylist())
