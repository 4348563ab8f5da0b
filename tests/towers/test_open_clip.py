"""Towers of open_clip, which are tested where it is installed: the library's own numbers."""

import json
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import Captions, Images
from aoq.models.towers.image_towers import open_image_tower
from aoq.models.towers.text_towers import open_text_tower
from aoq.pipeline.prepare.pieces import Pieces
from tests.prepare import tiny
from tests.towers.conftest import CLOSE, SIDE, gathered, normalised, pretrained

LONGEST, IDS = 8, 49408
CONFIG = json.loads(json.dumps(tiny.CLIP))
for side in ("vision_cfg", "text_cfg"):
    CONFIG["model_cfg"][side]["layers"] = 2
CONFIG["model_cfg"]["text_cfg"]["vocab_size"] = IDS
VISION = {
    "vit": CONFIG["model_cfg"]["vision_cfg"],
    "resnet": {"image_size": SIDE, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8},
    "timm": {"image_size": 160, "timm_model_name": "test_vit", "timm_pool": "token", "timm_proj": "linear"},
}
CAPTIONS = ["a small dog", "two", "a dog and a small red cube on grass"]


@pytest.fixture(scope="module")
def open_clip():
    tiny.import_torchvision()
    return pytest.importorskip("open_clip")


def saved(open_clip, folder, kind="vit", prefix="", **text):
    """open_clip's own pair in eval mode, and the name of its folder."""
    torch.manual_seed(0)
    config = json.loads(json.dumps(CONFIG))
    config["model_cfg"]["vision_cfg"] = VISION[kind]
    config["model_cfg"]["text_cfg"] |= text
    model = open_clip.CLIP(**config["model_cfg"]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.3, 0.3)
        model.logit_scale.fill_(math.log(50))
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    return model, f"open_clip:{prefix}{folder}"


@pytest.fixture(scope="module")
def pair(open_clip, tmp_path_factory):
    return saved(open_clip, tmp_path_factory.mktemp("open_clip"), prefix="local-dir:")


@pytest.mark.parametrize("kind", list(VISION))
def test_states_and_vectors_of_images_are_the_librarys(open_clip, tmp_path, pixels, kind, caplog):
    model, name = saved(open_clip, tmp_path, kind)
    tower = pretrained(open_image_tower(name, native=True))
    pixels = pixels.repeat(1, tower.preprocessing.height // SIDE, tower.preprocessing.width // SIDE, 1)
    seen = normalised(pixels)
    assert_close(tower.native(Images(pixels)), model.encode_image(seen), **CLOSE)
    assert tower.native_size == 6
    assert "initialized randomly" not in caplog.text
    states, mask = tower.states(Images(pixels))
    assert mask is None
    maps = model.visual.forward_intermediates(seen, indices=1, normalize_intermediates=True)["image_intermediates"][0]
    assert_close(states, maps.flatten(2).transpose(1, 2), **CLOSE)
    assert tower.size == states.shape[2]
    assert ("cls" in tower.poolings) == (kind != "resnet")
    if kind == "vit":  # whose vector is a projection of the class token's state
        assert_close(tower.first(Images(pixels)) @ model.visual.proj, model.encode_image(seen), **CLOSE)


def test_captions_are_the_librarys_ids(open_clip, pair, tmp_path):
    pieces = Pieces.open(pair[1])
    made = pieces.tokenised(CAPTIONS)
    theirs = open_clip.get_tokenizer(pair[1].partition(":")[2])(CAPTIONS)
    for row, length in enumerate(made.lengths.tolist()):
        assert made.words[made.offsets[row] : made.offsets[row + 1]].tolist() == theirs[row, :length].tolist()
        assert not theirs[row, length:].any()
    assert made.lengths.tolist() == [5, 3, LONGEST]
    pieces.save(tmp_path / "kept")
    assert np.array_equal(Pieces.load(tmp_path / "kept").tokenised(CAPTIONS).words, made.words)
    assert len(pieces) == IDS


def test_states_and_vectors_of_captions_are_the_librarys(open_clip, pair):
    model, name = pair
    tower = pretrained(open_text_tower(name, vocabulary_size=IDS, native=True))
    captions = gathered(Pieces.open(name).tokenised(CAPTIONS))
    theirs = open_clip.get_tokenizer(name.partition(":")[2])(CAPTIONS)
    assert_close(tower.native(captions), model.encode_text(theirs), **CLOSE)
    states, mask = tower.states(captions)
    assert torch.equal(mask.sum(1), captions.lengths)
    for row, length in enumerate(captions.lengths.tolist()):
        assert_close(states[row, length - 1] @ model.text_projection, model.encode_text(theirs)[row], **CLOSE)
        assert not states[row, length:].any()
    short = tower.states(captions[torch.tensor([1])])[0][0]  # of a caption alone, cut at its own length
    assert_close(short, states[1, : len(short)], **CLOSE)
    assert tower.poolings == {"mean", "gpo", "native"}


def dual(name, **options):
    torch.manual_seed(0)
    towers = {"image_tower": name, "text_tower": name}
    model = build_model("dual_encoder", feature_size=5, vocabulary_size=IDS, **towers, **options)
    model.load_pretrained()
    return model


@pytest.mark.parametrize("poolings", [("native", "native"), ("cls", "mean"), ("mean", "gpo")])
def test_every_parameter_is_trained_with_or_without_checkpoints(pair, pixels, poolings):
    name, gradients = pair[1], []
    captions = gathered(Pieces.open(name).tokenised(CAPTIONS))
    for checkpointed in (False, True):
        model = dual(name, image_pooling=poolings[0], text_pooling=poolings[1], embedding_size=8).train()
        if checkpointed:
            for tower in model.towers.values():
                tower.checkpoint_gradients()
        similarity = model.similarity(model.encode_images(Images(pixels)), model.encode_captions(captions))
        (similarity * torch.arange(1.0, 4.0)).sum().backward()
        assert [key for key, one in model.named_parameters() if one.grad is None] == []
        gradients.append({key: one.grad for key, one in model.named_parameters()})
    for key, gradient in gradients[0].items():
        assert_close(gradients[1][key], gradient, **CLOSE)


@pytest.mark.parametrize("native", [False, True])
def test_layers_are_all_parameters_and_projections_are_above(pair, native):
    towers = open_image_tower(pair[1], native=native), open_text_tower(pair[1], vocabulary_size=IDS, native=native)
    for tower in towers:
        layers, names = tower.layers(), {id(one): name for name, one in tower.network.named_parameters()}
        assert sorted(id(one) for layer in layers for one in layer) == sorted(names)
        assert len(layers) == 4
        last = {names[id(one)] for one in layers[-1]}
        assert all("ln_post" in one or "ln_final" in one or "proj" in one for one in last)
        assert any(one in ("proj", "text_projection") for one in last) == native


def test_what_does_not_fit_is_one_sentence(open_clip, pair, tmp_path):
    with pytest.raises(
        ValueError, match=r"^open_clip:ViT-B-32 cannot be loaded \(give the weights' tag after a slash; t"
    ):
        open_image_tower("open_clip:ViT-B-32")
    with pytest.raises(
        ValueError, match=r"cannot be loaded \(put the file of weights into a folder with its open_clip_co"
    ):
        open_image_tower(f"open_clip:ViT-B-32/{pair[1].rpartition(':')[2]}/open_clip_pytorch_model.bin")
    with pytest.raises(ValueError, match=r"^open_clip:local-dir:/no/where cannot be loaded \("):
        open_image_tower("open_clip:local-dir:/no/where")
    with pytest.raises(ValueError, match=r"knows 49408 ids, but the captions' tokeniser has 50000; set \[dataset\]"):
        open_text_tower(pair[1], vocabulary_size=50000)
    tower = open_text_tower(pair[1], vocabulary_size=IDS)
    with pytest.raises(
        ValueError, match=r"a caption has 9 ids, but open_clip:.* takes 8; set \[dataset\] tokeniser = "
    ):
        tower.states(Captions(torch.ones(1, 9, dtype=torch.long), torch.tensor([9])))
    _, name = saved(open_clip, tmp_path, no_causal_mask=True, pool_type="last")
    with pytest.raises(
        ValueError, match=r"the text side of open_clip:.* is not CLIP's causal transformer; open such a pair as tran"
    ):
        open_text_tower(name, vocabulary_size=IDS)
