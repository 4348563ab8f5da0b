"""Two runs of a folder with strange captions, annotations and without some pictures; and the page about them."""

from itertools import cycle

import numpy as np
import pytest
from PIL import Image

from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.stages.report import plan_report, render_report
from tests.stages.conftest import make_stage

SECTIONS = ("verdict", "results", "runs", "training", "cross")
SECTIONS += ("right", "attention", "tables", "examples", "provenance")
"""The page's, in their order."""
STAGES = ("dataset", "first_round", "embeddings", "hard_negatives", "second_round", "evaluation")
TEACHER = """
dataset.folder = "one"
model = {name = "vsepp", embedding_size = 16, word_size = 8}
first_round = {epochs = 1, batch_size = 16, loss.name = "online"}
mining = {h_captions = 9, h_images = 4}
second_round = {epochs = 2, batch_size = 16, loss.name = "sum"}
"""
STUDENT = """
teacher = "TEACHER"
dataset.folder = "one"
model = {name = "scan", embedding_size = 16, word_size = 8, bidirectional = false}
second_round = {epochs = 1, batch_size = 16, loss.name = "offtri"}
"""
STRANGE = (
    '<script>alert("x")</script> & "two" dogs <b>',
    "👩‍🚀 a dog 🐕",
    "כלב רץ על הדשא",
    "a plain dog runs .",
    "an \x1b[31m escape \u202e",
)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """Two trained and evaluated experiments on a folder with thumbnails and a hostile caption, and one untrained."""
    root = tmp_path_factory.mktemp("report")
    write_demo_world(root / "one", images=40, dev_images=12, seed=0)
    (root / "one" / "dev_labels.json").unlink()  # it knows no truth, like any folder
    for split in ("train", "dev"):
        captions = (root / "one" / f"{split}_caps.txt").read_text().splitlines()
        captions[0:30] = [f"{text} {number}" for number, text in zip(range(30), cycle(STRANGE))]
        (root / "one" / f"{split}_caps.txt").write_text("\n".join(captions) + "\n")
        images = 40 if split == "train" else 12
        (root / "one" / f"{split}_ids.txt").write_text("".join(f"{split}{n}.png\n" for n in range(images)))
    (root / "one" / "thumbs").mkdir()
    rng = np.random.default_rng(0)
    for split, images in (("train", 40), ("dev", 11)):  # one is missing
        for n in range(images):
            pixels = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "one" / "thumbs" / f"{split}{n}.png")
    (root / "one" / "thumbs" / "dev3.png").write_bytes(b"no picture")
    rows = [f"{caption // 5},{caption}" for caption in range(60)] + ["1,0", "2,0", "5,3"]
    (root / "one" / "dev_relevance.csv").write_text("\n".join(["image_id,caption_id", *rows]) + "\n")
    (root / "one" / "dev_relevance_half.csv").write_text("image_id,caption_id,direction\n1,0,i2t\n")
    np.save(root / "one" / "dev_classes.npy", np.eye(12, 5, dtype=np.bool_))
    judged = [f"{image},{caption},{(image + caption) % 4}" for image in range(12) for caption in range(60)]
    (root / "one" / "dev_judgements.csv").write_text("\n".join(["image_id,caption_id,score", *judged]) + "\n")
    (root / "teacher.toml").write_text(TEACHER)
    (root / "student.toml").write_text(STUDENT.replace("TEACHER", str(root / "teacher.toml")))
    for name in ("teacher", "student"):
        plan = plan_report(str(root / f"{name}.toml"), data_root=root, artifact_root=root / "artifacts")
        chain = plan.members[0].chain
        for stage in STAGES:
            make_stage(chain, stage)
    return root


@pytest.fixture(scope="session")
def names(root):
    return [str(root / "student.toml"), str(root / "teacher.toml"), f"{root / 'student.toml'}@seed=7"]


@pytest.fixture(scope="session")
def places(root):
    return {"data_root": root, "artifact_root": root / "artifacts"}


@pytest.fixture(scope="session")
def options(root):
    return ["--data-root", str(root), "--artifact-root", str(root / "artifacts")]


@pytest.fixture(scope="session")
def planned(names, places):
    return plan_report(";".join(names), **places)


@pytest.fixture(scope="session")
def page(planned):
    return render_report(planned)


@pytest.fixture
def unplotted(monkeypatch):
    """Leave plots out, which take most of a page's time."""
    monkeypatch.setattr("aoq.pipeline.report.plots._svg", lambda title, figure: f'<svg aria-label="{title}"></svg>')
