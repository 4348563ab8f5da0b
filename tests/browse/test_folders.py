"""Any table's folder, browsed by its own pairs."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from aoq.pipeline.browse.app import create_app
from aoq.pipeline.browse.folders import open_folders
from aoq.pipeline.browse.matches import Matches
from aoq.pipeline.cli import main
from aoq.pipeline.tables.table import read_table

IMAGES, EACH = 12, 2
SIZES = ("--h-captions", "6", "--h-images", "4")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """(output, *pairing) -> a table of random vectors in the current directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("images.npy", rng.normal(size=(IMAGES, 5)).astype(np.float32))
    np.save("captions.npy", rng.normal(size=(IMAGES * EACH, 5)).astype(np.float32))

    def run(*arguments):
        done = CliRunner().invoke(main, ["mine", *arguments])
        assert done.exit_code == 0, done.output

    return run


def pages(source, tmp_path):
    marked = Matches(tmp_path / "matches.csv", IMAGES, IMAGES * EACH)
    client = create_app(source, marked, 80).test_client()
    return lambda address: client.get(address, base_url="http://127.0.0.1")


def test_lists_are_shown_with_what_was_given(mine, tmp_path):
    for name in ("one", "other"):
        mine("images.npy", "captions.npy", name, "--per-image", str(EACH), *SIZES)
    texts = [f"text of row {row}" for row in range(IMAGES * EACH)]
    ids = [f"{row}.png" for row in range(IMAGES)]
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 8), "red").save(tmp_path / "pictures" / "3.png")
    source = open_folders([Path("one"), Path("other")], texts, ids, None, tmp_path / "pictures")
    get = pages(source, tmp_path)
    page = get("/image/3")
    assert page.status_code == 200
    best = int(read_table(Path("one")).i2t.negative_ids[3, 0])
    for said in (texts[6], texts[7], texts[best], "3.png"):
        assert said in page.text
    assert "text of row 5" in get("/search?q=row 5").text
    assert [table.name for table in source.tables] == ["one", "other"]
    (address,) = set(re.findall(r'/picture/[^"/]+/3(?=")', get("/image/3").text))
    with Image.open(io.BytesIO(get(address).data)) as picture:
        assert picture.getpixel((0, 0))[0] > 200
    assert get(address.replace("/3", "/4")).mimetype == "image/svg+xml"


def test_without_texts_captions_go_by_their_ids_or_rows(mine, tmp_path):
    mine("images.npy", "captions.npy", "bare", "--per-image", str(EACH), *SIZES)
    assert "caption 7" in pages(open_folders([Path("bare")]), tmp_path)("/image/3").text
    names = [f"name{row}" for row in range(IMAGES * EACH)]
    assert "name7" in pages(open_folders([Path("bare")], None, None, names), tmp_path)("/image/3").text


def test_what_pages_cannot_show_is_refused(mine, tmp_path):
    mine("images.npy", "set", "--unpaired", *SIZES[:2])
    mine("images.npy", "captions.npy", "unpaired", "--unpaired", *SIZES)
    mine("images.npy", "captions.npy", "paired", "--per-image", str(EACH), *SIZES)
    for arguments, message in (
        (["set"], "set is of one set, and pages show two sides; look at it with: aoq inspect set"),
        (["unpaired"], "unpaired has captions of no image or of several"),
        (["paired", "demo"], "name tables' folders alone"),
        (["demo", "--texts", "images.npy"], "name tables' folders alone"),
    ):
        shown = CliRunner().invoke(main, ["browse", *arguments])
        assert shown.exit_code in (1, 2)
        assert message in shown.stderr
