"""Weights that were trained elsewhere, as the teacher and in place of all training."""

from __future__ import annotations

import pytest

from aoq.models import build_model
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.training.checkpoint import read_weights, save_model

SMALL = {"embedding_size": 16, "word_size": 8, "bidirectional": False}
IMPORTED = 'teacher_weights = "teacher.safetensors"\nmining = {h_captions = 9, h_images = 4}'


def sizes_of(chain):
    return {key: chain["dataset"].manifest()[key] for key in ("feature_size", "vocabulary_size")}


def test_an_imported_teacher_mines(make, data_root):
    def write_teacher(**options):
        model = build_model("vsepp", **options)
        save_model(data_root / "teacher.safetensors", model.state_dict(), {"name": "vsepp", "options": options})
        return model

    options = {**SMALL, **sizes_of(make("own", "dataset"))}
    model = write_teacher(**options)
    mined = make("imported", "mining", teacher=IMPORTED)
    assert "rsum" in mined["first_round"].manifest()["metrics"]
    _, weights = read_weights(mined["first_round"].path / "model.safetensors")
    assert weights.keys() == model.state_dict().keys()
    write_teacher(**{**options, "vocabulary_size": options["vocabulary_size"] + 1})
    with pytest.raises(ValueError, match=r"vocabulary_size is \d+ there and \d+ here.* Set \[model\]"):
        make("wrong", "mining", teacher=IMPORTED)


WEIGHTS = """
dataset.folder = "{folder}"
model = {{name = "{model}", embedding_size = 16, word_size = 8}}
{teacher}
"""


def test_imported_weights_of_any_model_are_evaluated(make, data_root):
    options = ModelSection.kind("scan")(name="scan", embedding_size=16, word_size=8).model_dump(exclude={"name"})
    options |= sizes_of(make("own", "dataset"))
    weights = build_model("scan", **options).state_dict()
    save_model(data_root / "scan.safetensors", weights, {"name": "scan", "options": options})
    source, stages = 'weights = "scan.safetensors"', ["dataset", "second_round", "evaluation"]
    chain = make("weights", *stages, model="scan", teacher=source, text=WEIGHTS)
    assert set(chain.stages) == set(stages)
    assert chain["evaluation"].manifest()["metrics"] == chain["second_round"].manifest()["metrics"]
    for given, message in (
        ({"model": "scan"}, r"`weights` replace all training; take out \['second_round'\]"),
        ({"model": "bfan", "text": WEIGHTS}, "holds a 'scan', the experiment a 'bfan'"),
        (
            {"model": "scan", "text": WEIGHTS, "teacher": ""},
            r"give \[second_round\] or \[co_teaching\], or imported `weights`",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make("wrong", "dataset", "second_round", **{"teacher": source, **given})
