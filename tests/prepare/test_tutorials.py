"""The tutorials as they stand, on a few photographs; the third is in tests/integrations."""

from __future__ import annotations

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.prepare.conftest import encoded, picture

TUTORIALS = Path(__file__).parent.parent.parent / "docs" / "tutorials.md"
FIRST, SECOND, THIRD, IN_OPEN_CLIP, IN_COLPALI, LAST = TUTORIALS.read_text(encoding="utf-8").split("\n## ")[1:]


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run(text, folder):
    """Every command of the shell blocks but for installing; what they print."""
    said = []
    for line in "".join(blocks(text, "sh")).splitlines():
        if line.startswith("pip "):
            continue
        command, *arguments = shlex.split(line, comments=True)
        program = Path(sys.executable).parent / command if command in ("aoq", "luigi") else command
        ended = subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True)
        assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
        said.append(ended.stdout)
    return "\n".join(said)


@pytest.fixture
def here(tmp_path):
    (tmp_path / "luigi.cfg").write_text("[engine]\nthreads = 1\n")
    return tmp_path


def test_photographs_to_a_student(here):
    (here / "photos").mkdir()
    rows = []
    for n in range(40):
        (here / "photos" / f"{n}.jpg").write_bytes(encoded(picture(n, 40, 30), "JPEG"))
        rows += [[f"photos/{n}.jpg", f"{text} number {n}"] for text in ("a photograph", "seen from afar")]
    with (here / "photos.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", "caption"], *rows])
    (toml,) = blocks(FIRST, "toml")
    small = toml.replace("300", "5").replace("60", "3").replace("epochs = 12", "epochs = 2").replace("[8]", "[1]")
    (here / "mine.toml").write_text(small)
    said = run(FIRST, here)
    assert "round two - control:" in said
    assert "fewer than a batch of 64" in said


def save_data_set(folder, count):
    """`count` photographs with two captions each, as `load_dataset(…).save_to_disk` leaves them."""
    datasets = pytest.importorskip("datasets")
    images = [picture(n, 40, 30) for n in range(count)]
    captions = [[f"a photograph {n % 7}", f"seen from afar {n}"] for n in range(count)]
    columns = datasets.Features({"image": datasets.Image(), "caption": datasets.Sequence(datasets.Value("string"))})
    whole = datasets.Dataset.from_dict({"image": images, "caption": captions}, features=columns)
    datasets.DatasetDict({"train": whole}).save_to_disk(folder)


def test_a_data_set_to_negatives(here, clip):
    save_data_set(here / "flickr", 200)
    said = run(SECOND.replace("openai/clip-vit-base-patch32", str(clip[2])), here)
    assert "resolve_ids" in said
    pictures = pq.read_table(here / "negatives" / "images.parquet")
    assert all(cell["bytes"] for cell in pictures["image"].to_pylist())
    assert len(np.load(here / "vectors" / "captions.npy")) == 2 * len(np.load(here / "vectors" / "images.npy"))


def test_negatives_take_turns_in_a_loop_of_ones_own():
    (loop,) = blocks(LAST, "python")
    names: dict = {}
    exec(compile(loop, "rotation", "exec"), names)
    assert names["loss"].isfinite()
    assert int(names["rows"]["negative_ids"].shape[1]) == 4
