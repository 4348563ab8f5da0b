"""`aoq browse` as it is typed, and a table's folder with what is given for its rows."""

import signal
import socket
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aoq.pipeline.browse.source import open_folders
from aoq.pipeline.data.folder import open_split
from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.tables.table import NegativeTable
from tests.cli.conftest import run
from tests.programs import browsing

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def places(world, tmp_path):
    return ["--data-root", world, "--artifact-root", world / "artifacts", "--matches", tmp_path / "matches.csv"]


def refused(*arguments):
    shown = run("browse", *arguments, code=1).stderr
    assert shown.startswith("error: ")
    return shown


def test_without_flask_it_says_what_to_install(world, places, monkeypatch):
    monkeypatch.setitem(sys.modules, "flask", None)
    assert "aoq browse needs flask" in (said := refused(world / "one.toml", *places))
    assert '`pip install "aoq[browse]"`' in said


def test_it_serves_until_it_is_stopped(world, places, tmp_path):
    with browsing(["aoq", "browse", world / "one.toml", *places], ROOT, signal.SIGTERM) as printed:
        assert f"{tmp_path / 'matches.csv'} (0 so far)" in printed[0]
        with urllib.request.urlopen(f"{printed[1]}image/3", timeout=60) as answer:
            assert answer.status == 200
    assert not (tmp_path / "matches.csv").exists()


def test_a_busy_port_is_said(world, places):
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        shown = refused(world / "one.toml", "--port", port, *places)
    assert f"port {port} is in use by another program; choose another with --port" in shown


def test_what_has_nothing_to_show_names_the_command(world, places):
    name = world / "one.toml"
    assert f"run: aoq run {name}@seed=2 --round hard_negatives" in refused(f"{name}@seed=2", *places)
    (world / "both.toml").write_text(f'[ensemble]\nmembers = ["{name}", "{name}@seed=1"]\n')
    assert f"run: aoq evaluate {world / 'both.toml'}" in refused(world / "both.toml", *places)


def test_tables_of_other_data_are_refused(world, places):
    name = world / "one.toml"
    message = refused(name, f"{name}@dataset.train_images=60", *places)
    assert "have different training data" in message
    assert "give both the same" in message


TEXTS = ["a dog", "two cats", "", "a <b>boat</b>", "a dog"]


@pytest.fixture
def table(tmp_path):
    """Three images, five captions: one of two images, one of none, and an image without captions."""
    i2t = NegativeLists(
        np.array([[4, 3], [4, 0], [0, 1]], np.int32),
        np.array([[0.9, 0.2], [0.4, 0.3], [0.5, 0.4]], np.float32),
        np.array([0.5, 0.6, np.nan], np.float32),
    )
    t2i = NegativeLists(
        np.array([[1], [2], [2], [0], [0]], np.int32),
        np.array([[0.3], [0.4], [0.1], [0.2], [0.9]], np.float32),
        np.array([0.7, 0.6, 0.5, np.nan, np.nan], np.float32),
    )
    pairs = np.array([[0, 0], [0, 1], [1, 1], [0, 2]], np.int32)
    ids = {"images": ["a", "b", "c"]}
    NegativeTable(i2t, t2i, {}, pairs, ids).save(tmp_path / "mined")
    return tmp_path / "mined"


def test_a_bare_table_has_its_ids_and_row_numbers(table, pages_of):
    browse = pages_of(open_folders([table]))
    page = browse.text("/image/0")
    assert "caption 4" in page
    assert ">caption 0</a>" in page  # its own
    assert "▲" in page
    for address in ("/", "/image/2", "/caption/0", "/caption/1", "/caption/3", "/caption/4/listed", "/suspects"):
        page = browse.text(address)
        assert 'href="/image/-1' not in page
        assert "image -1" not in page
    assert "belongs to no image" in browse.text("/caption/3")
    for image in ("a", "b"):
        assert f"image <bdi>{image}</bdi>" in browse.text("/caption/1")  # of two images
    assert browse.mark(0, 1).status_code == 400  # its own
    assert browse.mark(1, 1).status_code == 400
    assert browse.mark(2, 1).status_code == 303


def test_texts_ids_and_pictures_are_given(table, pages_of, tmp_path):
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 30), "red").save(tmp_path / "photos" / "x.png")
    (tmp_path / "photos" / "y").write_bytes(b"no picture")
    ids = ["x", "y", "../z"]
    source = open_folders([table], texts=TEXTS, image_ids=ids, image_root=tmp_path / "photos")
    browse = pages_of(source)
    assert "a dog" in browse.text("/image/0")
    assert "2 captions have" in browse.text("/search?q=dog")
    key = source.train.key
    assert [browse.get(f"/picture/{key}/{row}").mimetype for row in range(3)] == ["image/jpeg", *["image/svg+xml"] * 2]


def test_a_dataset_folder_says_all(world, folders, source, pages_of):
    opened = open_folders(folders, open_split(world / "one", "train"), data=world / "one")
    browse = pages_of(opened)
    assert len(opened.tables) == 2
    assert source.train.split.captions[35] in browse.text("/image/7?table=0&beside=1")
    assert browse.get(f"/picture/{opened.train.key}/0").mimetype == "image/jpeg"
