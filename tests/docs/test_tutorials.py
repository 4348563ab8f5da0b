"""Every tutorial runs as written, on a few photographs; tests/integrations runs those that train in other libraries."""

import re
import shlex
import urllib.parse
import urllib.request
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.data.demo import write_demo_world
from tests.prepare.conftest import encoded, picture, save_clip, write_csv
from tests.programs import browsing
from tests.tutorials import PAGES, blocks, page, run, save_data_set

ROOT = PAGES.parent.parent
IMAGES = 70  # enough for lists of 300 captions and 60 images


@pytest.fixture
def here(tmp_path):
    (tmp_path / "luigi.cfg").write_text("[engine]\nthreads = 1\n")
    return tmp_path


def photograph(folder: Path, count: int) -> list[str]:
    """Write photographs below the folder and return their names."""
    (folder / "photos").mkdir()
    names = [f"{n}.jpg" for n in range(count)]
    for n, name in enumerate(names):
        (folder / "photos" / name).write_bytes(encoded(picture(n, 40, 30), "JPEG"))
    return names


def test_every_tutorial_is_in_the_list_and_in_the_menu():
    pages = {path.name for path in PAGES.glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\]\((\w+\.md)\)", page("index"))) == pages
    assert set(re.findall(r"tutorials/(\w+\.md)", (ROOT / "mkdocs.yml").read_text())) == pages | {"index.md"}


def mark_first_suspect(address: str) -> tuple[int, int]:
    """Mark the first suspected pair as a match, as the page's button does, and return it as (image, caption)."""
    with urllib.request.urlopen(f"{address}suspects", timeout=60) as answer:
        shown = answer.read().decode()
    form = {
        name: re.search(f'name="{name}" value="([^"]*)"', shown)[1] for name in ("token", "image", "caption", "back")
    }
    sent = urllib.parse.urlencode({**form, "match": "yes"}).encode()
    with urllib.request.urlopen(f"{address}mark", data=sent, timeout=60) as answer:
        assert answer.status == 200
    return int(form["image"]), int(form["caption"])


def test_vectors_are_mined_and_screened(here, monkeypatch, capsys):
    """Both tutorials, since the second continues the first."""
    (here / "ids.txt").write_text("".join(f"{name}\n" for name in photograph(here, IMAGES)))
    write_demo_world(here / "world", images=IMAGES, dev_images=5, seed=0)
    (here / "world" / "train_caps.txt").rename(here / "captions.txt")
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, 8))
    np.save(here / "images.npy", images.astype(np.float32))
    np.save(here / "captions.npy", (images.repeat(5, axis=0) + rng.normal(size=(5 * IMAGES, 8))).astype(np.float32))
    printed = run("".join(blocks(page("vectors"), "sh")), here)
    assert "image 17" in printed
    (code,) = blocks(page("vectors"), "python")
    monkeypatch.chdir(here)
    exec(compile(code, "vectors", "exec"), {})
    first, second = capsys.readouterr().out.splitlines()
    assert re.findall(r"\d+", first)[:3] == re.findall(r"\d+", second)[:3]

    look, browse, screen, export = blocks(page("screening"), "sh")
    run(look, here)
    with browsing(shlex.split(browse), here) as printed:
        image, caption = mark_first_suspect(printed[1])
    printed = run(screen, here)
    assert all(rule in printed for rule in ("positives", "near_text", "caption_similarity"))
    run(export, here)
    texts = (here / "captions.txt").read_text().splitlines()
    rows = pq.read_table(here / "triplets" / "train.parquet").to_pylist()
    negatives = {row["negative"] for row in rows if row["anchor"] == str(here / "photos" / f"{image}.jpg")}
    assert len(negatives) == 5
    assert texts[caption] not in negatives


@pytest.mark.slow
def test_photographs_become_a_student_and_a_study(here):
    """Both tutorials, since the second continues the first."""
    names = [(name, " ".join(name)) for name in photograph(here, 40)]  # a word per letter, so that each is frequent
    texts = ("a photo", "from afar", "at night", "by day")  # 128 captions to train on, the teacher's batch
    rows = [[f"photos/{name}", f"{text} {words}"] for name, words in names for text in texts]
    write_csv(here / "photos.csv", ["image", "caption"], rows)
    (toml,) = blocks(page("photographs"), "toml")
    small = toml.replace("epochs = 12", "epochs = 2").replace("[8]", "[1]")
    (here / "mine.toml").write_text(small)
    printed = run("".join(blocks(page("photographs"), "sh")), here)
    assert "round two - control:" in printed
    assert "fewer than a batch of 64" in printed

    (toml,) = blocks(page("study"), "toml")
    (here / "trial.toml").write_text(toml.replace("[0, 1, 2]", "[0, 1]"))
    trained = set((here / "artifacts" / "second_round").glob("*/MANIFEST.json"))
    printed = run("".join(blocks(page("study"), "sh")), here)
    assert "in-batch negatives" in printed
    assert "the teacher's negatives" in printed
    added = set((here / "artifacts" / "second_round").glob("*/MANIFEST.json")) - trained
    assert len(added) == 3, "one of seed 0 was there, and in-batch negatives alone are a control"


def test_a_pretrained_encoder_is_fine_tuned(here, minilm):
    """On a generated world, in few steps."""
    write_demo_world(here / "data" / "pairs", images=40, dev_images=12, seed=0)
    (toml,) = blocks(page("fine_tuning"), "toml")
    toml = toml.replace("transformers:sentence-transformers/all-MiniLM-L6-v2", minilm)
    for usual, few in (("epochs = 10", "epochs = 1"), ("epoch_steps = 50", "epoch_steps = 2"), ("= 128", "= 32")):
        toml = toml.replace(usual, few)
    (here / "mine.toml").write_text(toml.replace("h_images = 100", "h_images = 20").replace("epochs = 4", "epochs = 1"))
    make, finish = blocks(page("fine_tuning"), "sh")
    assert "screen with relative_margin" in run(make, here)
    printed = run(finish, here)
    assert "round two - control:" in printed
    assert "; the control encoded as many images and captions" in printed


def test_two_rounds_on_flickr30k(here):
    """Run the tutorial on a generated world in the folder's format, with smaller models."""
    data = here / "data" / "f30k_precomp"
    write_demo_world(data, images=30, dev_images=8, seed=0)
    for kind in ("ims.npy", "caps.txt"):
        (data / f"test_{kind}").write_bytes((data / f"dev_{kind}").read_bytes())
    (here / "configs").mkdir()
    smaller = {
        r"^epochs = \d+": "epochs = 1",
        r"^decay_epochs = .*": "",
        r"^batch_size = \d+": "batch_size = 50",
        r"^h_captions = 300": "h_captions = 9",
        r"^h_images = 60": "h_images = 4",
        r'^name = "(\w+)"': r'name = "\1"\nembedding_size = 16\nword_size = 8',
    }
    for name in ("f30k_vsrn", "f30k_scan"):
        toml = (ROOT / "configs" / f"{name}.toml").read_text()
        for option, value in smaller.items():
            toml = re.sub(option, value, toml, flags=re.MULTILINE)
        (here / "configs" / f"{name}.toml").write_text(toml)
    printed = run("".join(blocks(page("flickr30k"), "sh")), here)
    assert "round two - control:" in printed
    assert "image 17" in printed
    assert re.search(r"^teacher\b.*\bvsrn\b", printed, re.MULTILINE)
    assert re.search(r"^round two\b.*\bscan\b", printed, re.MULTILINE)
    assert load_experiment("f30k_scan").evaluation.split == "test"


@pytest.mark.slow
def test_a_data_set_to_negatives(here, tmp_path_factory):
    save_data_set(here / "flickr", 40)
    clip = tmp_path_factory.mktemp("clip")
    save_clip(clip)
    mine, export = blocks(page("sentence_transformers").replace("openai/clip-vit-base-patch32", str(clip)), "sh")
    printed = run(mine + export, here)
    assert "resolve_ids" in printed
    pictures = pq.read_table(here / "negatives" / "images.parquet")
    assert all(cell["bytes"] for cell in pictures["image"].to_pylist())
    assert len(np.load(here / "vectors" / "captions.npy")) == 2 * len(np.load(here / "vectors" / "images.npy"))


def test_negatives_rotate_in_a_loop():
    (loop,) = blocks(page("rotation"), "python")
    names: dict = {}
    exec(compile(loop, "rotation", "exec"), names)
    assert names["loss"].isfinite()
    assert int(names["rows"]["negative_ids"].shape[1]) == 4
