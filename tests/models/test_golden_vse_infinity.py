"""VSE∞ against numbers of the official code, in eval mode and in a pass of training without size augmentation."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import Captions, Images
from aoq.models.official import from_official, our_weights

PARTS = {"img_enc": "image", "txt_enc": "text"}


@pytest.fixture
def case(golden):
    return golden("vse_infinity")


@pytest.fixture
def model(case):
    found = from_official([case.weights(part) for part in PARTS], case.meta["config"]["opt"])
    assert (found.name, found.options["vocabulary_size"]) == ("vse_infinity", 49)
    model = build_model(found.name, **found.options, size_augmentation=0.0)
    model.load_state_dict(found.weights)
    return model


def test_embeddings_and_scores(case, model):
    seen = {}
    for name, pool in (("img", model.pool_regions), ("cap", model.pool_words)):
        weights = pool.weights
        pool.weights = lambda lengths, name=name, weights=weights: seen.setdefault(name, weights(lengths))
    images = model.eval().encode_images(Images(case["in/images"]))
    captions = model.encode_captions(Captions(case["in/captions"], case["in/lengths"]))
    case.check("out/inter/pool_weights_img", seen["img"].expand(6, -1))
    case.check("out/inter/pool_weights_cap", seen["cap"][case["in/lengths"] - 1])
    case.check("out/img_emb", images.vectors)
    case.check("out/cap_emb", captions.vectors)
    case.check("out/scores", model.similarity(images, captions))


def test_images_of_fewer_regions(case, model):
    mask = torch.arange(12) < case["in/varied/lengths"].unsqueeze(1)
    case.check("out/varied/img_emb", model.eval().encode_images(Images(case["in/varied/images"], mask)).vectors)
    case.check("out/varied/inter/pool_weights", model.pool_regions.weights(case["in/varied/lengths"]))


def test_loss_gradients_and_statistics_in_training(case, model, triplet):
    images = model.train().encode_images(Images(case["in/train/images"]))
    captions = model.encode_captions(Captions(case["in/captions"][:6], case["in/lengths"][:6]))
    case.check("out/train/img_emb", images.vectors)
    case.check("out/train/cap_emb", captions.vectors)
    loss = triplet(model.similarity(images, captions), hardest=True)
    case.check("out/train/loss", loss)
    loss.backward()
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for part, kind in PARTS.items():
        for key in case.keys(f"out/train/grad/{part}."):
            (name,) = our_weights({key.removeprefix(f"out/train/grad/{part}."): case[key]}, kind)
            case.check(key, parameters.pop(name).grad)
        for key in case.keys(f"out/train/updated/{part}."):
            found = our_weights({key.removeprefix(f"out/train/updated/{part}."): case[key]}, kind)
            name = next(name for name in found if name.endswith(key.rpartition(".")[2]))
            assert_close(buffers[name], case[key])
    assert not parameters
