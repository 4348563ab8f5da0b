"""VSE∞ and the models of fragments, on patches and word pieces: what they are on a library's own states."""

import pytest
import torch
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import Captions, Images
from tests.towers.conftest import CLOSE, WORDS, normalised

MODELS = {"scan": {}, "bfan": {}, "naaf": {}, "imram": {}, "sgr": {"similarity_size": 4}, "saf": {"similarity_size": 4}}
MODELS |= {"vse_infinity": {}}
SIZES = {"vocabulary_size": WORDS, "embedding_size": 8}


@pytest.fixture(params=list(MODELS))
def case(request, saved):
    """A model with both towers, and the same on region features."""
    options, towers = MODELS[request.param], {f"{side}_tower": saved(k)[1] for side, k in TOWERS.items()}
    torch.manual_seed(0)
    model = build_model(request.param, feature_size=5, **SIZES, **options, **towers)
    model.load_pretrained()
    regions = {"regions": 16} if request.param in ("sgr", "saf") else {}
    plain = build_model(request.param, feature_size=16, **SIZES, **options, **regions)
    state = {name: one for name, one in model.state_dict().items() if not name.startswith(("image.", "text."))}
    missing, unexpected = plain.load_state_dict(state, strict=False)
    assert unexpected == []
    assert all(name.startswith("text.") for name in missing)
    return model.eval(), plain.eval()


TOWERS = {"image": "vit", "text": "bert"}


@pytest.fixture
def captions():
    return Captions(torch.randint(3, WORDS, (5, 6)), torch.tensor([6, 3, 4, 5, 3]))


def test_regions_are_the_patches_of_the_tower(case, saved, pixels):
    model, plain = case
    patches = saved("vit")[0](pixel_values=normalised(pixels)).last_hidden_state[:, 1:]
    assert_close(model.encode_images(Images(pixels)).vectors, plain.encode_images(Images(patches)).vectors, **CLOSE)


def test_words_are_the_states_of_the_tower(case, saved, captions, monkeypatch):
    """The tower's states of a caption alone replace those of the GRU."""
    model, plain = case
    result = model.encode_captions(captions)
    for row, length in enumerate(captions.lengths.tolist()):
        states = saved("bert")[0](input_ids=captions.words[row : row + 1, :length]).last_hidden_state
        states = states @ model.text.project.weight.T + model.text.project.bias
        mask = torch.ones(1, length, dtype=torch.bool)
        monkeypatch.setattr(plain.text, "states", lambda _, states=states, mask=mask: (states, mask))
        expected = plain.encode_captions(captions[row : row + 1]).vectors[0]
        assert_close(result.vectors[row] if expected.ndim == 1 else result.vectors[row, :length], expected, **CLOSE)


def test_every_parameter_is_trained(case, pixels, captions):
    model, _ = case
    images, codes = model.encode_images(Images(pixels)), model.encode_captions(captions)
    (model.similarity(images, codes) * torch.arange(1.0, 6.0)).sum().backward()
    assert {*model.towers} == {"image", "text"}
    # A graph layer adds the bias of its keys to all logits of a softmax.
    names = [name for name, one in model.named_parameters() if one.grad is None and not name.endswith("key.bias")]
    assert names == []
    matrix = model.similarity(images, codes).diagonal()
    assert_close(model.pair_similarity(images, codes), matrix, **CLOSE)


def test_a_model_of_boxes_takes_no_patches(saved):
    with pytest.raises(ValueError, match="PFAN needs the box of every region, but patches have none"):
        build_model("pfan", feature_size=5, image_tower=saved("vit")[1], **SIZES)


def test_the_halves_of_two_pairs_share_no_space(saved):
    native = {"image_pooling": "native", "text_pooling": "native", "project": False}
    names = {"image_tower": saved("clip")[1], "text_tower": saved("siglip")[1]}
    with pytest.raises(ValueError, match=r"image_tower = 'transformers:.*' and text_tower = .* share no space; leave"):
        build_model("dual_encoder", feature_size=5, **SIZES, **names, **native)
