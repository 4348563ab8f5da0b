"""What every model of the registry owes its callers, in eval mode unless said."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from torch.testing import assert_close

from models import MODELS, build_model
from models.base import Captions, Code, EmbeddingModel, Images, concatenate

CLOSE = {"atol": 2e-6, "rtol": 2e-5}


def encode(model, world):
    images, captions = world
    return model.encode_images(images), model.encode_captions(captions)


def similarity(model, world):
    return model.similarity(*encode(model, world))


def test_one_row_an_image_and_one_column_a_caption(build, world):
    result = similarity(build(), world(images=3, lengths=(2, 5, 5, 1)))
    assert result.shape == (3, 4)
    assert result.isfinite().all()
    assert len(result.unique()) == 12


@pytest.mark.parametrize("masked", [False, True])
def test_pairs_are_entries_of_the_matrix(build, world, masked):
    model, pairs = build(), world(masked=masked)
    images, captions = encode(model, pairs)
    matrix = model.similarity(images, captions)
    assert_close(model.pair_similarity(images, captions), matrix.diagonal(), **CLOSE)
    rows, columns = torch.tensor([3, 0, 0, 4, 1, 2]), torch.tensor([1, 4, 2, 2, 0, 3])
    assert_close(model.pair_similarity(images[rows], captions[columns]), matrix[rows, columns], **CLOSE)


def test_padding_words_are_invisible(build, world):
    model, (images, captions) = build(), world()
    padded = F.pad(captions.words, (0, 3))
    noise = torch.where(torch.arange(padded.shape[1]) < captions.lengths.unsqueeze(1), padded, 9)
    expected = similarity(model, (images, captions))
    for words in (padded, noise):
        assert_close(similarity(model, (images, Captions(words, captions.lengths))), expected, **CLOSE)


def test_order_is_irrelevant(build, world):
    model, (images, captions) = build(), world(masked=True)
    i, c = torch.tensor([4, 0, 3, 1, 2]), torch.tensor([2, 1, 4, 0, 3])
    permuted = similarity(model, (images[i], captions[c]))
    assert_close(permuted, similarity(model, (images, captions))[i][:, c], **CLOSE)


def test_batch_mates_are_irrelevant(build, world):
    model, (images, captions) = build(), world(masked=True)
    full = similarity(model, (images, captions))
    for i in range(len(images)):
        for c in range(len(captions)):
            alone = similarity(model, (images[i : i + 1], captions[c : c + 1]))
            assert_close(alone, full[i : i + 1, c : c + 1], **CLOSE)


@pytest.mark.parametrize("tile", [1, 2, 5])
def test_tile_size_is_irrelevant(build, world, tile):
    model = build()
    images, captions = encode(model, world(masked=True))
    full = model.similarity(images, captions)
    for i in range(0, 5, tile):
        for c in range(0, 5, tile):
            part = model.similarity(images[i : i + tile], captions[c : c + tile])
            assert_close(part, full[i : i + tile, c : c + tile], **CLOSE)


def test_gradients_do_not_change_values(build, world):
    model, pairs = build(), world(masked=True)
    with torch.no_grad():
        without = similarity(model, pairs)
    assert_close(similarity(model, pairs), without, **CLOSE)


def test_codes_encoded_apart_can_be_joined(build, world):
    model, (images, captions) = build(), world(masked=True)
    parts = [captions[:2], captions[2:3], captions[3:]]
    code = concatenate([model.encode_captions(part) for part in parts])
    image_code = concatenate([model.encode_images(part) for part in (images[:1], images[1:])])
    assert_close(model.similarity(image_code, code), similarity(model, (images, captions)), **CLOSE)


@pytest.mark.parametrize("garbage", [1e4, torch.nan])
def test_masked_regions_are_invisible(build, world, garbage):
    """Each image equals itself without its masked regions, wherever those stood and whatever they held."""
    model, (images, captions) = build(), world(masked=True)
    assert not images.mask.all()
    dirty = Images(images.features.masked_fill(~images.mask.unsqueeze(-1), garbage), images.mask)
    code, caption_code = encode(model, (dirty, captions))
    auxiliary = []
    for i, mask in enumerate(images.mask):
        alone = model.encode_images(Images(images.features[i : i + 1, mask]))
        expected = model.similarity(alone, caption_code)
        assert_close(model.similarity(code[i : i + 1], caption_code), expected, **CLOSE)
        auxiliary.append(model.auxiliary_loss(alone, captions[i : i + 1]))
    if auxiliary[0] is not None:
        assert_close(model.auxiliary_loss(code, captions), torch.stack(auxiliary).mean(), **CLOSE)


@pytest.mark.parametrize("garbage", [1e4, torch.nan])
def test_masked_regions_are_invisible_to_gradients_and_statistics(build, world, garbage):
    """In training mode: a batch with two masked regions an image equals the batch without them."""
    (images, captions), order = world(), torch.tensor([[0, 2, 3, 5]]).expand(5, -1)
    mask = torch.zeros(5, 6, dtype=torch.bool).scatter(1, order, True)
    batches = [
        Images(images.features[:, order[0]]),
        Images(images.features.masked_fill(~mask.unsqueeze(-1), garbage), mask),
    ]
    models = [build().train(), build().train()]
    for model, batch in zip(models, batches, strict=True):
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        objective(model, batch, captions).backward()
    for (name, plain), masked in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert_close(masked.grad, plain.grad, atol=1e-4, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
    for plain, masked in zip(models[0].buffers(), models[1].buffers(), strict=True):
        assert_close(masked, plain, **CLOSE)


def objective(model, images, captions):
    image_code, caption_code = encode(model, (images, captions))
    loss = (model.similarity(image_code, caption_code) * torch.arange(1.0, 6.0)).sum()
    loss = loss + model.pair_similarity(image_code, caption_code).square().sum()
    auxiliary = model.auxiliary_loss(image_code, captions)
    return loss if auxiliary is None else loss + auxiliary


def test_gradients_reach_every_parameter(build, world):
    model = build()
    objective(model, *world(masked=True)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_weights_survive_a_save(build, world, tmp_path):
    model, other, pairs = build(seed=1), build(seed=2), world()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    assert not torch.allclose(similarity(model, pairs), similarity(other, pairs), atol=1e-4)
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    assert torch.equal(similarity(model, pairs), similarity(other, pairs))


@pytest.mark.parametrize(
    "small",
    [
        {"lengths": (1, 1, 1)},
        {"images": 1, "lengths": (3,)},
        {"images": 1, "lengths": (1,)},
        {"regions": 1},
        {"images": 1, "regions": 1, "lengths": (1,)},
    ],
    ids=str,
)
def test_small_worlds(build, world, small):
    model, pairs = build(), world(**small)
    image_code, caption_code = encode(model, pairs)
    result = model.similarity(image_code, caption_code)
    assert result.shape == (len(pairs[0]), len(pairs[1]))
    low, high = model.similarity_range
    assert ((result > low - 1e-5) & (result < high + 1e-5)).all()
    n = min(result.shape)
    pair = model.pair_similarity(image_code[:n], caption_code[:n])
    assert_close(pair, result.diagonal(), **CLOSE)
    result.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("bias", [True, False])
def test_featureless_images_stay_finite(build, world, bias):
    """Zero features; without a bias even zero embeddings."""
    model, (images, captions) = build(), world()
    if not bias:
        for name, parameter in model.named_parameters():
            if "bias" in name and not name.startswith("text."):
                parameter.data.zero_()
    zero = Images(torch.zeros_like(images.features))
    loss = objective(model, zero, captions)
    assert loss.isfinite()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
        assert parameter.grad is None or parameter.grad.abs().max() < 1e5, name


def test_embeddings_have_unit_length(build, world):
    model = build()
    if not isinstance(model, EmbeddingModel):
        return
    for code in encode(model, world(masked=True)):
        assert isinstance(code, Code)
        assert_close(code.vectors.norm(dim=1), torch.ones(5))


def test_an_unknown_model_is_an_error_with_the_known_ones():
    with pytest.raises(ValueError, match=r"no model 'clip'; known models are \['scan', 'vsepp', 'vsrn'\]"):
        build_model("clip", feature_size=2, vocabulary_size=3)
    assert sorted(MODELS) == ["scan", "vsepp", "vsrn"]
