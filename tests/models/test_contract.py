"""Every model of the registry keeps these promises, in eval mode unless said."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from aoq.models import MODELS, build_model, fragments
from aoq.models.base import Captions, Code, Images, concatenate
from aoq.pipeline.losses.hinge import NO_NEGATIVE

CLOSE = {"atol": 2e-6, "rtol": 2e-5}
# Each adds the same number to all logits of a softmax, which does not see it.
CANCELLED = ("common.bias", "key.bias")


def encode(model, world):
    images, captions = world
    return model.encode_images(images), model.encode_captions(captions)


def similarity(model, world):
    return model.similarity(*encode(model, world))


def undropped(model):
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def spoilt(images):
    """The same images with NaN and large numbers, region by region, where nothing should be seen."""
    garbage = torch.where(torch.arange(images.mask.shape[1]) % 2 == 0, torch.nan, 1e4).unsqueeze(-1)
    real = images.mask.unsqueeze(-1)
    return Images(torch.where(real, images.features, garbage), images.mask, torch.where(real, images.boxes, garbage))


def real_part(images, item):
    """One image, without its masked regions."""
    real = slice(None) if images.mask is None else images.mask[item]
    return Images(images.features[item : item + 1, real], None, images.boxes[item : item + 1, real])


def test_an_unknown_model_is_an_error_with_the_known_ones():
    known = ", ".join(map(repr, sorted(MODELS)))
    with pytest.raises(ValueError, match=rf"no model 'clip'; known models are \[{known}\]"):
        build_model("clip", feature_size=2, vocabulary_size=3)


@pytest.mark.parametrize("masked", [False, True])
def test_pairs_are_entries_of_the_matrix(build, world, masked):
    model, pairs = build(), world(masked=masked and build.takes_masks)
    images, captions = encode(model, pairs)
    matrix = model.similarity(images, captions)
    assert_close(model.pair_similarity(images, captions), matrix.diagonal(), **CLOSE)
    rows, columns = torch.tensor([3, 0, 0, 4, 1, 2]), torch.tensor([1, 4, 2, 2, 0, 3])
    assert_close(model.pair_similarity(images[rows], captions[columns]), matrix[rows, columns], **CLOSE)
    chosen = torch.tensor([True, False, True, True, False])
    assert_close(model.pair_similarity(images[chosen], captions[chosen]), matrix.diagonal()[chosen], **CLOSE)


def test_padding_words_are_invisible(build, world):
    model, (images, captions) = build(), world()
    padded = F.pad(captions.words, (0, 3))
    noise = torch.where(torch.arange(padded.shape[1]) < captions.lengths.unsqueeze(1), padded, 9)
    expected = similarity(model, (images, captions))
    for words in (padded, noise):
        assert_close(similarity(model, (images, Captions(words, captions.lengths))), expected, **CLOSE)


def test_batch_mates_are_irrelevant(build, world):
    model, (images, captions) = build(), world(masked=build.takes_masks)
    full = similarity(model, (images, captions))
    for i, c in zip([0, 1, 2, 3, 4] * 2, [0, 1, 2, 3, 4, 2, 4, 1, 0, 3], strict=True):
        alone = similarity(model, (images[i : i + 1], captions[c : c + 1]))
        assert_close(alone, full[i : i + 1, c : c + 1], **CLOSE)


def test_neither_gradients_nor_parts_change_values(build, world, monkeypatch):
    """Without gradients fragment models cut the matrix into tiles; codes that were encoded apart can be joined."""
    monkeypatch.setattr(fragments, "TILE_IMAGES", 2)
    monkeypatch.setattr(fragments, "TILE_CAPTIONS", 3)
    model, (images, captions) = build(), world(masked=build.takes_masks)
    expected = similarity(model, (images, captions))
    with torch.no_grad():
        assert_close(similarity(model, (images, captions)), expected, **CLOSE)
    code = concatenate([model.encode_captions(part) for part in (captions[:2], captions[2:3], captions[3:])])
    image_code = concatenate([model.encode_images(part) for part in (images[:1], images[1:])])
    assert_close(model.similarity(image_code, code), expected, **CLOSE)


def test_masked_regions_are_invisible(build_masking, world):
    """Each image equals itself without its masked regions, wherever those stood and whatever they held."""
    model, (images, captions) = build_masking(), world(masked=True)
    assert not images.mask.all()
    code, caption_code = encode(model, (spoilt(images), captions))
    auxiliary = []
    for i in range(len(images)):
        alone = model.encode_images(real_part(images, i))
        expected = model.similarity(alone, caption_code)
        assert_close(model.similarity(code[i : i + 1], caption_code), expected, **CLOSE)
        auxiliary.append(model.auxiliary_loss(alone, captions[i : i + 1]))
    if auxiliary[0] is not None:
        assert_close(model.auxiliary_loss(code, captions), torch.stack(auxiliary).mean(), **CLOSE)


def test_masked_regions_are_invisible_to_gradients_and_statistics(build_masking, world):
    """In training mode a batch with two masked regions an image equals the batch without them."""
    (images, captions), order = world(), torch.tensor([[0, 2, 3, 5]]).expand(5, -1)
    mask = torch.zeros(5, 6, dtype=torch.bool).scatter(1, order, True)
    batches = [
        Images(images.features[:, order[0]], None, images.boxes[:, order[0]]),
        spoilt(replace(images, mask=mask)),
    ]
    models = [build_masking().train(), build_masking().train()]
    for model, batch in zip(models, batches, strict=True):
        objective(undropped(model), batch, captions).backward()
    for (name, plain), masked in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert_close(masked.grad, plain.grad, atol=1e-4, rtol=1e-3, msg=lambda m, name=name: f"{name}: {m}")
    assert_close(list(models[1].buffers()), list(models[0].buffers()), **CLOSE)


def test_an_image_without_any_region_stays_finite(build_masking, world):
    model, (images, captions) = build_masking(), world(masked=True)
    images.mask[2] = False
    check_gradients(model, spoilt(images), captions)


def test_groups_of_a_training_batch_are_encoded_as_if_in_turn(build, world):
    """Vectors, what the auxiliary loss sees, and the running statistics."""
    images, _ = world(images=6, masked=build.takes_masks)
    if images.mask is not None:
        images.mask[::2] = True  # in each group, so that all are as wide
    together, in_turn = (undropped(build()).train() for _ in range(2))
    code = together.encode_images(replace(images, groups=3))
    parts = [in_turn.encode_images(images[start : start + 2]) for start in (0, 2, 4)]
    assert_close(code.vectors, concatenate(parts).vectors, **CLOSE)
    for name in ("pooled", "context"):
        if (found := getattr(code, name)) is not None:
            assert_close(found, torch.cat([getattr(part, name) for part in parts]), **CLOSE)
    assert_close(list(together.buffers()), list(in_turn.buffers()), **CLOSE)
    alone = undropped(build()).train().encode_images(images)
    mixes = any(isinstance(module, nn.BatchNorm1d) for module in together.modules())
    encoded = (code.vectors, code.pooled), (alone.vectors, alone.pooled)
    assert mixes != all(a is None or torch.allclose(a, b, **CLOSE) for a, b in zip(*encoded, strict=True))


def test_a_model_that_takes_no_masks_says_so(build_unmasking, world):
    model, (images, captions) = build_unmasking(), world(masked=True)
    with pytest.raises(ValueError, match=r"no region may be masked; remove \{split\}_mask\.npy"):
        model.encode_images(images)
    harmless = replace(images, mask=torch.ones_like(images.mask))
    assert torch.equal(
        similarity(model, (harmless, captions)), similarity(model, (replace(images, mask=None), captions))
    )


def test_boxes_are_needed_or_not_looked_at(build, world):
    model, (images, captions) = build(), world()
    without = replace(images, boxes=None)
    if model.needs_boxes:
        with pytest.raises(ValueError, match=r"needs the box of every region.*add \{split\}_boxes\.npy"):
            model.encode_images(without)
    else:
        assert torch.equal(similarity(model, (without, captions)), similarity(model, (images, captions)))


def objective(model, images, captions):
    image_code, caption_code = encode(model, (images, captions))
    loss = (model.similarity(image_code, caption_code) * torch.arange(1.0, 6.0)).sum()
    loss = loss + model.pair_similarity(image_code, caption_code).square().sum()
    auxiliary = model.auxiliary_loss(image_code, captions)
    return loss if auxiliary is None else loss + auxiliary


def check_gradients(model, images, captions):
    """The objective is finite, and so are its gradients."""
    loss = objective(model, images, captions)
    assert loss.isfinite()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is None or parameter.grad.abs().max() < 1e5, name


def test_gradients_reach_every_parameter(build, world):
    model = build()
    check_gradients(model, *world(masked=build.takes_masks))
    for name, parameter in model.named_parameters():
        if name.endswith(CANCELLED):
            assert parameter.grad is None or parameter.grad.abs().max() < 1e-4, name
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name


def test_weights_and_what_was_learnt_besides_survive_a_save(build, world, tmp_path):
    model, other, pairs = build(seed=1), build(seed=2), world()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    assert not torch.allclose(similarity(model, pairs), similarity(other, pairs), atol=1e-4)
    other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    for training in (False, True):
        torch.manual_seed(0)  # dropout
        expected = similarity(model.train(training), pairs)
        torch.manual_seed(0)
        assert torch.equal(similarity(other.train(training), pairs), expected)
    assert_close(list(other.buffers()), list(model.buffers()), atol=0, rtol=0)


@pytest.mark.parametrize("small", [{"images": 1, "lengths": (3,)}, {"regions": 1, "lengths": (1, 1, 1)}], ids=str)
def test_small_worlds(build, world, small):
    model, pairs = build.with_regions(small.get("regions", 6))(), world(**small)
    image_code, caption_code = encode(model, pairs)
    result = model.similarity(image_code, caption_code)
    assert result.shape == (len(pairs[0]), len(pairs[1]))
    n = min(result.shape)
    assert_close(model.pair_similarity(image_code[:n], caption_code[:n]), result.diagonal(), **CLOSE)
    result.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_similarities_lie_far_above_a_missing_negatives(build, world):
    """It holds for any two items, and for images and captions whose vectors are all equal or opposite."""
    model = build()
    images, captions = encode(model, world(lengths=(4, 1, 100, 2, 4)))
    one = torch.eye(images.vectors.shape[-1])[0]
    equal = [replace(code, vectors=one.expand_as(code.vectors)) for code in (images, captions)]
    opposite = [replace(images, vectors=-one.expand_as(images.vectors)), equal[1]]
    for codes in ((images, captions), equal, opposite):
        assert model.similarity(*codes).abs().max() < -NO_NEGATIVE / 10


def test_featureless_images_stay_finite(build, world):
    """Zero features, and without biases even zero embeddings."""
    model, (images, captions) = build(), world()
    for name, parameter in model.named_parameters():
        if "bias" in name and not name.startswith("text."):
            parameter.data.zero_()
    check_gradients(model, replace(images, features=torch.zeros_like(images.features)), captions)


def test_embeddings_have_unit_length(build_embedding, world):
    for code in encode(build_embedding(), world(masked=True)):
        assert isinstance(code, Code)
        assert_close(code.vectors.norm(dim=1), torch.ones(5))


def test_attention_sums_to_one_over_what_is_real(build_attending, world):
    """Weights of a real query sum to one over real keys; NAAF's words may attend to nothing. Padding gets none."""
    model, (images, captions) = build_attending(), world(masked=build_attending.takes_masks)
    for found in model.fragment_attention(*encode(model, (images, captions))):
        word_mask = torch.arange(7) < captions.lengths.unsqueeze(1)
        region_mask = torch.ones(5, 6, dtype=torch.bool) if images.mask is None else images.mask
        masks = (word_mask, region_mask) if found.direction == "t2i" else (region_mask, word_mask)
        assert torch.equal(found.query_mask, masks[0])
        assert torch.equal(found.key_mask, masks[1])
        assert (found.weights >= 0).all()
        assert not found.weights[~(masks[0].unsqueeze(2) & masks[1].unsqueeze(1))].any()
        total = found.weights.sum(2)[masks[0]]
        attending = total > 0 if build_attending.name == "naaf" else torch.ones_like(total, dtype=torch.bool)
        assert attending.any()
        assert_close(total, attending.float(), **CLOSE)


def test_attention_of_a_pair_depends_on_nothing_else(build_attending, world):
    """Neither on batch mates, nor on padding, nor on masked regions."""
    model, (images, captions) = build_attending(), world(masked=build_attending.takes_masks)
    codes = encode(model, (images, captions))
    for pair in range(5):
        own = model.fragment_attention(*encode(model, (real_part(images, pair), captions[pair : pair + 1])))
        for found, one in zip(model.fragment_attention(*codes), own, strict=True):
            real = found.weights[pair][found.query_mask[pair]][:, found.key_mask[pair]]
            queries, keys = found.queries[pair][found.query_mask[pair]], found.keys[pair][found.key_mask[pair]]
            assert_close((real, queries, keys), (one.weights[0], one.queries[0], one.keys[0]), **CLOSE)


def test_models_without_attention_say_so(build_embedding, world):
    model = build_embedding()
    assert not model.attends
    with pytest.raises(ValueError, match=rf"{type(model).__name__} compares whole images .* has no attention; choose"):
        model.fragment_attention(*encode(model, world()))
