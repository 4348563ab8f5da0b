"""The registry: what a model needs to be in it, and what is said of one that is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from aoq.models import MODELS, build_model
from aoq.models.base import Captions, Code, EmbeddingModel, Images


class Toy(EmbeddingModel):
    """The mean region through a matrix, the mean word vector: all that a model has to say."""

    def __init__(self, *, feature_size: int, vocabulary_size: int, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(feature_size, size)
        self.words = nn.Embedding(vocabulary_size, size)

    def encode_images(self, images: Images) -> Code:
        return Code(F.normalize(self.project(images.features.mean(1)), dim=1))

    def encode_captions(self, captions: Captions) -> Code:
        real = torch.arange(captions.words.shape[1]) < captions.lengths.unsqueeze(1)
        return Code(F.normalize((self.words(captions.words) * real.unsqueeze(2)).sum(1), dim=1))


def test_adding_a_model_is_one_class_and_one_line(monkeypatch, world):
    monkeypatch.setitem(MODELS, "toy", Toy)
    torch.manual_seed(0)
    model, (images, captions) = build_model("toy", feature_size=5, vocabulary_size=30, size=8), world()
    assert isinstance(model, Toy)
    image_code, caption_code = model.encode_images(images), model.encode_captions(captions)
    result = model.similarity(image_code, caption_code)
    image = F.normalize(model.project(images.features[1].mean(0)), dim=0)
    caption = F.normalize(model.words(captions.words[2]).sum(0), dim=0)
    assert_close(result[1, 2], image @ caption)
    assert_close(model.pair_similarity(image_code, caption_code), result.diagonal())
    assert model.auxiliary_loss(image_code, captions) is None
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.begin_epoch(0, 1)
    model.observe(image_code, caption_code, result)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_an_unknown_model_is_an_error_with_the_known_ones():
    known = ", ".join(map(repr, sorted(MODELS)))
    with pytest.raises(ValueError, match=rf"no model 'clip'; known models are \[{known}\]"):
        build_model("clip", feature_size=2, vocabulary_size=3)
