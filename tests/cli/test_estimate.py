"""`aoq estimate`: what mining will take, in words and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from aoq.pipeline.cli import main
from aoq.pipeline.mining import estimate as estimating

TINY = str(Path(__file__).parent.parent / "tiny.toml")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("images.npy", rng.normal(size=(20, 7)).astype(np.float32))
    np.save("captions.npy", rng.normal(size=(40, 7)).astype(np.float16))
    return lambda *arguments: CliRunner().invoke(main, ["estimate", *map(str, arguments)])


VECTORS = ("images.npy", "captions.npy", "--per-image", 2, "--h-captions", 6, "--h-images", 4)


def test_it_says_what_mining_vectors_takes_and_leaves_nothing(run, tmp_path):
    result = run(*VECTORS)
    assert result.exit_code == 0
    shown = " ".join(result.stdout.split())
    for words in ("20 images, 40 captions, 7 dimensions", "onepass: searching with", "time, about", "1.5 GB and"):
        assert words in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["captions.npy", "images.npy"]


def test_one_set_has_no_captions(run):
    result = run("images.npy", "--unpaired", "--h-captions", 6, "--normalise")
    shown = " ".join(result.stdout.split())
    assert "vectors 20 of one set, 7 dimensions lists 6 others for each" in shown
    assert "caption" not in shown


def test_programs_get_every_part(run):
    said = json.loads(run(*VECTORS, "--json", "--search", "faiss-flat", "--memory-mb", 300).stdout)
    assert said["shape"] == {
        "images": 20,
        "captions": 40,
        "dimensions": 7,
        "most_captions": 2,
        "h_captions": 6,
        "h_images": 4,
    }
    assert (said["search"], said["operations"], said["memory_bytes"]) == ("faiss-flat", 4 * 20 * 40 * 7, 300_000_000)
    assert said["total_seconds"] == pytest.approx(sum(said["seconds"].values()))
    assert said["steps"] == {}


def test_an_experiments_training_is_counted_in_steps(run):
    """60 images of 5 captions in batches of 16: 18 of them and 12 captions more, 2 and 3 epochs long."""
    said = json.loads(run("--experiment", TINY, "--json").stdout)
    assert (said["shape"]["captions"], said["shape"]["dimensions"]) == (300, 16)
    assert said["steps"] == {"round one": 2 * 19, "round two": 3 * 19}


def test_it_says_how_hard_offline_negatives_will_be(run):
    """20 captions and 8 images a list, beside 300 and 60 in batches of 16."""
    shown = run("--experiment", TINY).stdout
    drawn = "the hardest in a batch of 16 has rank 19 of 300 captions; draws from the first 20: about 6% of them are"
    assert drawn in shown
    assert "has rank 4 of 60 images; draws from the first 8: about 53% of them are easier" in shown
    said = json.loads(run("--experiment", TINY, "--override", 'sampling.hardness="auto"', "--json").stdout)
    assert said["drawing"][0].endswith("draws from the first 4: about 4.7 times harder")
    assert said["drawing"][-1].startswith("'vsepp' compares one vector with one")


def test_a_data_set_smaller_than_a_batch_is_told_so(run):
    change = 'second_round.batch_size=64, sampling.hardness="auto"'
    shown = run("--experiment", TINY, "--override", change).stdout
    assert "60 images are fewer than a batch of 64" in shown
    assert "has rank 1 of 60 images; draws from the first 4: about 75% of them are easier" in shown
    assert "smaller batch" not in shown


def test_the_old_name_still_answers(run):
    help_ = CliRunner().invoke(main, ["--help"]).stdout
    assert "Estimate what mining will take." in help_
    assert "\n  plan" not in help_
    assert CliRunner().invoke(main, ["plan", *map(str, VECTORS), "--json"]).stdout.startswith("{")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give IMAGES and CAPTIONS, or --experiment NAME"),
        (("images.npy",), "give the true pairs"),
        ((*VECTORS, "--experiment", "demo"), "give IMAGES and CAPTIONS, or"),
        (("images.npy", "--experiment", "demo"), "give IMAGES and CAPTIONS, or"),
        (("--experiment", TINY, "--h-images", 60), "--h-images is for IMAGES and CAPTIONS; an experiment has [m"),
        ((*VECTORS, "--override", "seed=1"), "--override is for an --experiment."),
        (VECTORS[:2], "give the true pairs"),
        ((*VECTORS, "--search", "best"), "there is no search 'best'"),
        ((*VECTORS[:4], "--h-captions", 39), "to at most 38"),
        (("--experiment", "nothing"), "unknown experiment 'nothing'"),
        (("--experiment", TINY, "--override", "refresh.rounds=1, refresh.h_captions=5"), "no first round is searched"),
    ],
)
def test_what_cannot_be_mined_cannot_be_estimated(run, arguments, message):
    result = run(*arguments)
    assert result.exit_code != 0
    assert message in result.stderr


def test_it_says_when_an_exact_search_takes_a_day_and_what_an_index_takes(run, monkeypatch):
    pytest.importorskip("faiss")
    monkeypatch.setattr(estimating, "LEAST_PAIRS", 1)
    shown = " ".join(run(*VECTORS).stdout.split())
    assert "an exact search takes a day at about" in shown
    assert "50,000,000" not in shown
    shown = " ".join(run(*VECTORS, "--search", "ivf").stdout.split())
    assert "50,000,000 100,000,000" in shown
    assert "scanning cells: 50,000,000 anchors x 64 cells looked at x" in shown
    said = json.loads(run(*VECTORS, "--search", "ivf", "--json").stdout)
    assert [scale["images"] for scale in said["index"]["larger"]] == [10**6, 10**7, 5 * 10**7]
    assert said["total_seconds"] == pytest.approx(sum(said["seconds"].values()))
