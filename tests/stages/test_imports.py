"""Weights that were trained elsewhere, as the teacher, in place of all training, and evaluated by the Python API."""

from pathlib import Path

import pytest

from aoq.models import build_model
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.evaluation.evaluate import evaluate
from aoq.pipeline.training.checkpoint import load_model, read_weights, save_model
from tests.stages.conftest import EXPERIMENT

SMALL = {"embedding_size": 16, "word_size": 8}
IMPORTED = 'teacher_weights = "vsepp.safetensors"\nmining = {h_captions = 9, h_images = 4}'
WEIGHTS = EXPERIMENT.replace("second_round = {{{second_round}}}", "")


@pytest.fixture
def write(make, data_root):
    """(name of a model) -> write its weights, which are random, and return them."""
    about = make("own", "dataset")["dataset"].manifest()

    def weights(name, further_words=0, **more):
        options = ModelSection.kind(name)(name=name, **SMALL, **more).model_dump(exclude={"name"})
        options |= {"feature_size": about["feature_size"], "vocabulary_size": about["vocabulary_size"] + further_words}
        content = build_model(name, **options).state_dict()
        save_model(data_root / f"{name}.safetensors", content, {"name": name, "options": options})
        return content

    return weights


def test_an_imported_teacher_mines(make, write):
    written = write("vsepp")
    mined = make("imported", "mining", teacher=IMPORTED)
    assert "rsum" in mined["first_round"].manifest()["metrics"]
    assert read_weights(mined["first_round"].path / "model.safetensors")[1].keys() == written.keys()
    write("vsepp", 1)
    with pytest.raises(ValueError, match=r"vocabulary_size is \d+ there and \d+ here.* Set \[model\]"):
        make("wrong", "mining", teacher=IMPORTED)


def test_a_student_continues_from_weights_without_a_captioner(make, write):
    assert not any(name.startswith("captioner") for name in write("vsrn", caption_weight=0.0))
    starts = 'epochs = 1, batch_size = 16, start = "teacher", loss.name = "offtri"'
    teacher, small = IMPORTED.replace("vsepp", "vsrn"), "caption_hidden_size = 6, caption_word_size = 5"
    options = f"embedding_size = 16, word_size = 8, {small}"
    chain = make("own", "mining", "second_round", model="vsrn", options=options, teacher=teacher, second_round=starts)
    trained = read_weights(chain["second_round"].path / "model.safetensors")[1]
    assert any(name.startswith("captioner") for name in trained)


def test_imported_weights_of_any_model_are_evaluated(make, write):
    write("scan")
    scan = {"model": "scan", "teacher": 'weights = "scan.safetensors"'}
    stages = ["dataset", "second_round", "evaluation"]
    chain = make("weights", *stages, text=WEIGHTS, **scan)
    assert set(chain.stages) == set(stages)
    metrics = chain["evaluation"].manifest()["metrics"]
    assert metrics == chain["second_round"].manifest()["metrics"]
    model, vocabulary = load_model(chain["second_round"].path / "model.safetensors"), chain["dataset"].path
    for kind in (Path, str):
        assert evaluate(model, kind(chain.folder), "dev", vocabulary=kind(vocabulary / "vocabulary.json")) == metrics
    for parts, message in (
        (scan, r"`weights` replace all training; take out \['second_round'\]"),
        ({**scan, "model": "bfan", "text": WEIGHTS}, "holds a 'scan', the experiment a 'bfan'"),
        ({**scan, "teacher": "", "text": WEIGHTS}, r"give \[second_round\] or \[co_teaching\], or imported `weights`"),
    ):
        with pytest.raises(ValueError, match=message):
            make("wrong", "dataset", "second_round", **parts)
