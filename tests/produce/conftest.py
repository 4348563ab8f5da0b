"""Experiments on two small worlds, made stage by stage in this process."""

from __future__ import annotations

import pytest

from aoq.pipeline.data.demo import write_demo_world
from aoq.pipeline.engine import Engine
from aoq.pipeline.planning.planner import plan
from aoq.pipeline.produce import PRODUCERS

EXPERIMENT = """
dataset.folder = "{folder}"
model = {{name = "{model}", embedding_size = 16, word_size = 8}}
{teacher}
second_round = {{{second_round}}}
{more}
"""
OWN = 'first_round = {epochs = 1, batch_size = 16, loss.name = "online"}\nmining = {h_captions = 9, h_images = 4}'
SHORT = 'epochs = 1, batch_size = 16, loss.name = "LOSS"'
MINING = ["dataset", "first_round", "embeddings", "hard_negatives"]
ENGINE = Engine(device="cpu", threads=1)


@pytest.fixture(scope="module")
def data_root(tmp_path_factory):
    """Worlds `one` and `two`, of 40 images to train on and 12 to judge by."""
    root = tmp_path_factory.mktemp("data")
    write_demo_world(root / "one", images=40, dev_images=12, seed=0)
    write_demo_world(root / "two", images=40, dev_images=12, seed=1)
    return root


@pytest.fixture
def make(data_root, tmp_path):
    """Plan an experiment from its parts, or from `text`, and make the stages; `mining` is all up to the table."""

    def run(
        name,
        *stages,
        folder="one",
        model="vsepp",
        teacher=OWN,
        loss="offtri",
        second_round=SHORT,
        more="",
        text=EXPERIMENT,
        root=data_root,
    ):
        path = tmp_path / f"{name}.toml"
        rounds = second_round.replace("LOSS", loss)
        path.write_text(text.format(folder=folder, model=model, teacher=teacher, second_round=rounds, more=more))
        chain = plan(str(path), data_root=root, artifact_root=tmp_path / "artifacts")
        for given in stages:
            for stage in MINING if given == "mining" else [given]:
                with chain[stage].building() as build:
                    if build is not None:
                        PRODUCERS[stage](chain, build, ENGINE)
        return chain

    return run


@pytest.fixture
def taught_by(tmp_path):
    """The line by which a student has the teacher and table of another experiment made here."""
    return lambda name: f'teacher = "{tmp_path / name}.toml"'
