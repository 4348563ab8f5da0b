"""The additions that CONTRIBUTING.md shows work as written."""

import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import aoq
from aoq.models import MODELS, build_model
from aoq.models.base import Captions, Images
from aoq.pipeline.cli import main
from aoq.pipeline.config.load import load_experiment
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.losses import LOSSES, LossKind
from aoq.pipeline.search.backends import BACKENDS

EXPERIMENT = """
model.name = "vsepp"
dataset.demo.images = 40
first_round = {epochs = 1, loss.name = "online"}
second_round = {epochs = 1, loss.name = "adapoffquin"}
mining = {search = "everything", h_captions = 7, h_images = 4}
"""
TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


def added(file: str, monkeypatch, folder: Path) -> ModuleType:
    """Import the module that a diff adds."""
    block = re.search(rf"^\+\+\+ {re.escape(file)}\n((?:\+.*\n)+)", TEXT, re.MULTILINE)
    assert block is not None, file
    name = Path(file).stem
    (folder / f"{name}.py").write_text("\n".join(line[1:] for line in block[1].splitlines()), encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    return import_module(name)


def test_the_model_scores_pairs_as_its_matrix(monkeypatch, tmp_path):
    monkeypatch.setitem(MODELS, "meanbag", added("models/meanbag.py", monkeypatch, tmp_path).MeanBag)
    assert ModelSection.kind("meanbag")(name="meanbag").embedding_size == 256
    model = build_model("meanbag", feature_size=5, vocabulary_size=9).eval()
    images = model.encode_images(Images(torch.randn(3, 4, 5)))
    captions = Captions(torch.tensor([[1, 2, 3], [4, 5, 0], [6, 0, 0]]), torch.tensor([3, 2, 1]))
    codes = model.encode_captions(captions)
    torch.testing.assert_close(model.similarity(images, codes).diagonal(), model.pair_similarity(images, codes))
    torch.testing.assert_close(model.encode_captions(captions[torch.tensor([2])]).vectors, codes.vectors[2:])


def test_the_loss_falls_as_pairs_separate(monkeypatch, tmp_path):
    logistic = added("pipeline/losses/logistic.py", monkeypatch, tmp_path).logistic
    monkeypatch.setitem(LOSSES, "logistic", LossKind(logistic, "none"))
    assert LossSection.kind("logistic")(name="logistic").steepness == 10.0
    level, separate = (
        logistic(aoq.Similarities(matrix, torch.eye(4).bool())).total for matrix in (torch.zeros(4, 4), torch.eye(4))
    )
    assert float(level) == pytest.approx(8 * np.log(2), rel=1e-5)
    assert separate < level


def test_the_backend_is_known_everywhere_and_finds_the_same_table(monkeypatch, tmp_path):
    backend = added("pipeline/search/everything.py", monkeypatch, tmp_path).EVERYTHING
    (tmp_path / "trial.toml").write_text(EXPERIMENT)
    with pytest.raises(ValueError, match=r"mining.search: there is no search 'everything'; known are auto, onepass"):
        load_experiment(str(tmp_path / "trial.toml"))
    monkeypatch.setitem(BACKENDS, "everything", backend)
    assert load_experiment(str(tmp_path / "trial.toml")).mining.is_exact
    monkeypatch.setitem(BACKENDS, "everything", replace(backend, guarantee=lambda store, direction: {}))
    assert not load_experiment(str(tmp_path / "trial.toml")).mining.is_exact
    monkeypatch.setitem(BACKENDS, "everything", backend)
    listed = json.loads(CliRunner().invoke(main, ["list", "searches", "--json"]).stdout)["searches"]
    assert {"search": "everything", "about": backend.about} in listed
    rng = np.random.default_rng(0)
    images, captions, image_of = rng.normal(size=(20, 4)), rng.normal(size=(40, 4)), np.arange(40) // 2
    tables = [aoq.hard_negatives(images, captions, image_of, h=(5, 3), search=one) for one in ("everything", "onepass")]
    assert tables[0].sha256 == tables[1].sha256
