"""A small world with the tables of two teachers, a screen, an evaluation and captions of all kinds; and its pages."""

import threading
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from aoq.pipeline.browse.app import create_app, open_server
from aoq.pipeline.browse.marks import Marks
from aoq.pipeline.browse.source import open_runs
from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.stages.plan import plan
from tests.stages.conftest import make_stage

IMAGES = 70
HOSTILE = '<script>alert("x")</script> & <b>dogs</b>'
EMOJI = "Ein Hund 🐕 läuft Straße"
HEBREW = "כלב רץ על הדשא"
HIDDEN = "a \u202edog\x1b[31m\x00"
EXPERIMENT = """
dataset.folder = "one"
model = {name = "vsepp", embedding_size = 16, word_size = 8}
first_round = {epochs = 1, batch_size = 32, loss.name = "online"}
mining = {h_captions = 60, h_images = 9}
screen = {near_text = 0.5, mutual_rank = 5}
second_round = {epochs = 2, batch_size = 32, warmup = ["sum"], loss.name = "adapoffquin"}
"""
STAGES = ("dataset", "first_round", "embeddings", "hard_negatives", "screen", "second_round", "evaluation")


def write_world(root: Path) -> None:
    write_demo_world(root / "one", images=IMAGES, dev_images=12, seed=0)
    for split, images in (("train", IMAGES), ("dev", 12)):
        path = root / "one" / f"{split}_caps.txt"
        captions = path.read_text().splitlines()
        captions[:4] = [HOSTILE, EMOJI, HEBREW, HIDDEN]
        path.write_text("\n".join(captions) + "\n", encoding="utf-8")
        ids = [f"{split}{n}.png" for n in range(images)]
        ids[4:8] = ["../secret.png", "../../../etc/passwd", "x" * 300, "train\u202e7\x07"]
        (root / "one" / f"{split}_ids.txt").write_text("".join(f"{name}\n" for name in ids))
        (root / "one" / f"{split}_labels.json").unlink()  # so that nothing is drawn
    (root / "one" / "thumbs").mkdir()
    for name in ["train0.png", "train1.png", "dev0.png", "../secret.png"]:
        Image.new("RGB", (40, 30), "red").save(root / "one" / "thumbs" / name)
    (root / "one" / "thumbs" / "train2.png").write_bytes(b"no picture")


def plan_one(root, override):
    return plan(str(root / "one.toml"), override=override, data_root=root, artifact_root=root / "artifacts")


@pytest.fixture(scope="session")
def world(tmp_path_factory):
    """The data root; of `one.toml` all is made, with seed=1 and on less data its table only."""
    root = tmp_path_factory.mktemp("browse")
    write_world(root)
    (root / "one.toml").write_text(EXPERIMENT)
    for override, stages in (("", STAGES), ("seed=1", STAGES[:4]), ("dataset.train_images=60", STAGES[:4])):
        chain = plan_one(root, override)
        for stage in stages:
            make_stage(chain, stage)
    return root


@pytest.fixture(scope="session")
def source(world):
    """Two tables, the first with its screen, and one evaluation."""
    return open_runs([(f"{world / 'one.toml'}@{override}", plan_one(world, override)) for override in ("", "seed=1")])


@pytest.fixture(scope="session")
def folders(world):
    """The folders of both tables."""
    return [plan_one(world, override)["hard_negatives"].path / "table" for override in ("", "seed=1")]


@dataclass(frozen=True)
class Browser:
    """The pages, by Flask's test client, and what is behind them."""

    client: Any
    marks: Marks | None
    token: str

    def get(self, address, **options):
        return self.client.get(address, base_url="http://127.0.0.1:8765", **options)

    def text(self, address):
        answer = self.get(address)
        assert answer.status_code == 200, answer.text
        return answer.text

    def post(self, address, **form):
        return self.client.post(address, data={"token": self.token, **form}, base_url="http://127.0.0.1:8765")

    def mark(self, image, caption, match="yes", back="/image/0", **other):
        return self.post("/mark", image=image, caption=caption, match=match, back=back, **other)


def marks_in(file, source):
    rows = source.train.split
    return Marks(file, len(rows.ids), len(rows.captions), "ann")


@pytest.fixture
def pages_of(tmp_path):
    """Pages of any source; marks go to `matches.csv`."""

    def make(source, file=tmp_path / "matches.csv"):
        marks = marks_in(file, source) if source.train else None
        app = create_app(source, marks, 8765)
        return Browser(app.test_client(), marks, app.jinja_env.globals["token"])

    return make


@pytest.fixture
def browse(pages_of, source):
    return pages_of(source)


@pytest.fixture
def serve(tmp_path):
    """Give a source to a real server; its address. Marks go to `matches.csv`."""
    with ExitStack() as running:

        def start(source):
            server = open_server(source, marks_in(tmp_path / "matches.csv", source), 0)
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            running.callback(thread.join)
            running.callback(server.shutdown)
            return f"http://127.0.0.1:{server.port}"

        yield start


@pytest.fixture
def served(serve, source):
    """The address of the world's pages."""
    return serve(source)
