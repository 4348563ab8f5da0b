"""A model or a loss that is one class or function and one line in its registry trains from an experiment's file."""

from __future__ import annotations

from typing import Literal

import pytest

from aoq.models import MODELS
from aoq.models.scan import SCAN
from aoq.models.vsepp import VSEpp
from aoq.pipeline.config.losses import LossSection
from aoq.pipeline.config.models import ModelSection
from aoq.pipeline.losses import LOSSES, LossKind
from aoq.pipeline.losses.similarities import LossValue, Similarities
from aoq.pipeline.training.checkpoint import load_model
from tests.stages.conftest import lines_with

TOY = 'size = 8, way = "b"'


class Toy(VSEpp):
    """Takes none of the options of its base class, and others instead."""

    def __init__(
        self,
        *,
        feature_size: int,
        vocabulary_size: int,
        size: int,
        way: Literal["a", "b"] = "a",
        scale: float | None = None,
    ) -> None:
        sizes = {"feature_size": feature_size, "vocabulary_size": vocabulary_size}
        super().__init__(**sizes, embedding_size=size, word_size=size)
        self.size, self.way = size, way


class Narrow(SCAN):
    """Takes what its base classes take, through its `**options`."""

    def __init__(self, *, width: int = 3, temperature_lse: float = 5.0, **options: object) -> None:
        super().__init__(temperature_lse=temperature_lse, **options)


def mined_hinge(pairs: Similarities, *, margin_online: float, power: int, side: Literal["i", "t"] = "i") -> LossValue:
    hinges = (margin_online - pairs.positive + pairs.offline.image_to_caption).clamp(min=0)
    return LossValue(hinges.pow(power).sum(), {})


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(MODELS, "toy", Toy)
    monkeypatch.setitem(MODELS, "narrow", Narrow)
    monkeypatch.setitem(LOSSES, "minedhinge", LossKind(mined_hinge, "anchors"))


def test_a_registered_model_and_a_registered_loss_train_on_the_table(make):
    short = 'epochs = 1, batch_size = 16, loss = {name = "minedhinge", power = 2, companions = "anchors"}'
    chain = make("toy", "mining", "second_round", "evaluation", model="toy", options=TOY, second_round=short)
    model = load_model(chain["second_round"].path / "model.safetensors")
    assert isinstance(model, Toy)
    assert (model.way, model.size) == ("b", 8)
    assert {*lines_with("loss_name", chain)} == {"minedhinge"}
    assert chain["evaluation"].manifest()["metrics"]["rsum"] > 0
    others = (TOY.replace('"b"', '"a"'), short), (TOY, short.replace("2", "3"))
    keys = {make("toy", model="toy", options=one, second_round=two)["second_round"].key for one, two in others}
    assert len({chain["second_round"].key, *keys}) == 3
    assert chain.experiment.second_round.loss.model_dump() == {
        "name": "minedhinge",
        "mask_positives": True,
        "companions": "anchors",
        "margin_online": 0.2,
        "power": 2,
        "side": "i",
    }


def test_sections_follow_the_constructor():
    narrow, scan = ModelSection.kind("narrow"), ModelSection.kind("scan")
    assert narrow.model_fields.keys() == scan.model_fields.keys() | {"width"}
    section = narrow(name="narrow")
    assert (section.width, section.temperature_lse, section.direction) == (3, 5.0, "t2i")
    assert (narrow.makes_embeddings, narrow.attends) == (False, True)
    toy = ModelSection.kind("toy")
    assert (toy.makes_embeddings, toy.attends) == (True, False)
    assert toy is ModelSection.kind("toy")
    assert (section.dimensions, ModelSection.kind("vsrn")(name="vsrn").dimensions) == (1024, 2048)
    with pytest.raises(ValueError, match=r"\[model\] toy has no option `embedding_size`"):
        _ = toy(name="toy", size=8).dimensions
    assert LossSection.kind("minedhinge").has_offline_terms
