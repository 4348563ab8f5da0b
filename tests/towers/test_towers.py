"""Towers give their library's own numbers, and are frozen, checkpointed and cut into layers as they should."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import Captions, Images
from aoq.models.towers.image_towers import open_image_tower
from aoq.models.towers.preprocessing import seen_by_transformers
from aoq.models.towers.text_towers import open_text_tower
from tests.towers.conftest import LONGEST, SIDE, VISION, WORDS, normalised

CLOSE = {"atol": 1e-5, "rtol": 1e-5}
LENGTHS = torch.tensor([5, 3, 7])


@pytest.fixture
def captions():
    """Ids that end with 2, the end of a text; beyond a caption's length stands noise."""
    words = torch.randint(3, WORDS, (3, 9), generator=torch.Generator().manual_seed(2))
    words[torch.arange(3), LENGTHS - 1] = WORDS - 1  # the highest id ends a text, which is how CLIP finds it
    return Captions(words, LENGTHS)


def image_tower(name, *, native=False):
    tower = open_image_tower(name, native=native)
    tower.load_pretrained()
    return tower.eval()


def text_tower(name, *, native=False):
    tower = open_text_tower(name, vocabulary_size=WORDS, native=native)
    tower.load_pretrained()
    return tower.eval()


@pytest.mark.parametrize(("kind", "prefix", "has_class"), [("vit", 1, 1), ("dinov2", 3, 1), ("swin", 0, 0)])
def test_patches_are_the_librarys_last_states_without_what_stands_before(saved, pixels, kind, prefix, has_class):
    model, name = saved(kind)
    tower, states = image_tower(name), model(pixel_values=normalised(pixels)).last_hidden_state
    found, mask = tower.states(Images(pixels))
    assert mask is None
    assert tower.size == found.shape[2]
    assert_close(found, states[:, prefix:], **CLOSE)
    assert ("cls" in tower.poolings) == bool(has_class)
    if has_class:
        assert_close(tower.first(Images(pixels)), states[:, 0], **CLOSE)
    assert "native" not in tower.poolings
    assert torch.equal(tower.regions(Images(pixels, groups=5)).features, found)


@pytest.mark.parametrize(("kind", "size"), [("clip", 6), ("siglip", 16)])
def test_the_vectors_of_a_pair_are_the_librarys(saved, pixels, captions, kind, size):
    model, name = saved(kind)
    images, texts = image_tower(name, native=True), text_tower(name, native=True)
    assert images.native_size == texts.native_size == size
    expected = model.get_image_features(pixel_values=normalised(pixels)).pooler_output
    assert_close(images.native(Images(pixels)), expected, **CLOSE)
    for row, length in enumerate(LENGTHS.tolist()):
        ids = captions.words[row : row + 1, :length]
        if kind == "siglip":  # which is trained with padding to its full length, and sees it
            ids = torch.nn.functional.pad(ids, (0, LONGEST - length), value=model.config.text_config.pad_token_id)
        expected = model.get_text_features(input_ids=ids).pooler_output[0]
        assert_close(texts.native(captions)[row], expected, **CLOSE)


def test_the_numbers_of_a_pair_are_the_librarys(saved):
    for kind in ("clip", "siglip"):
        model, name = saved(kind)
        found = open_image_tower(name, native=True).pair_numbers()
        expected = {"temperature": 1 / model.logit_scale.exp().item()}
        if kind == "siglip":
            expected["bias"] = model.logit_bias.item()
        assert found == pytest.approx(expected)
    with pytest.raises(ValueError, match="a TransformerImage by itself has no temperature; give"):
        open_image_tower(saved("vit")[1]).pair_numbers()


@pytest.mark.parametrize("kind", ["bert", "clip", "siglip"])
def test_states_of_captions_are_the_librarys_and_zero_beyond(saved, captions, kind):
    model, name = saved(kind)
    network, tower = getattr(model, "text_model", model), text_tower(name)
    states, mask = tower.states(captions)
    assert torch.equal(mask.sum(1), LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        ids = captions.words[row : row + 1, :length]
        if kind == "siglip":
            ids = torch.nn.functional.pad(ids, (0, LONGEST - length), value=model.config.text_config.pad_token_id)
        expected = network(input_ids=ids).last_hidden_state[0, :length]
        assert_close(states[row, :length], expected, **CLOSE)
        assert not states[row, length:].any()
    assert ("cls" in tower.poolings) == (kind == "bert")


def test_weights_are_random_until_they_are_asked_for(saved, pixels):
    model, name = saved("vit")
    tower = open_image_tower(name).eval()
    states = model(pixel_values=normalised(pixels)).last_hidden_state[:, 1:]
    assert not torch.allclose(tower.states(Images(pixels))[0], states, atol=0.1)


@pytest.mark.parametrize(("kind", "blocks"), [("vit", 2), ("clip", 2), ("swin", 2), ("siglip", 2)])
def test_layers_are_all_parameters_from_below_to_above(saved, kind, blocks):
    tower = open_image_tower(saved(kind)[1])
    layers, names = tower.layers(), {id(one): name for name, one in tower.network.named_parameters()}
    assert sorted(id(one) for layer in layers for one in layer) == sorted(names)
    assert len(layers) == blocks + 2
    assert all("embedding" in names[id(one)] or "pre_layrnorm" in names[id(one)] for one in layers[0])
    assert all("norm" in names[id(one)] or "head" in names[id(one)] for one in layers[-1])


def test_blocks_of_all_stages_are_layers(saved):
    """The longest stage is not the whole: what lies between stages belongs to the block below."""
    library = pytest.importorskip("transformers")
    config = library.SwinConfig(image_size=64, window_size=2, embed_dim=8, depths=[2, 2, 3], num_heads=[1, 1, 1])
    tower = open_image_tower(saved("swin")[1])
    tower.network = library.SwinModel(config, add_pooling_layer=False)
    layers, names = tower.layers(), {id(one): name for name, one in tower.network.named_parameters()}
    assert len(layers) == 7 + 2
    assert all("embedding" in names[id(one)] for one in layers[0])
    assert any("layers.0.downsample" in names[id(one)] for one in layers[2])
    assert {names[id(one)] for one in layers[-1]} == {"layernorm.weight", "layernorm.bias"}


def test_a_distillation_token_is_no_patch(saved, tmp_path):
    library = pytest.importorskip("transformers")
    model = library.DeiTModel(library.DeiTConfig(**VISION), add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    shutil.copy(Path(saved("vit")[1].partition(":")[2]) / "preprocessor_config.json", tmp_path)
    assert image_tower(f"transformers:{tmp_path}").count_patches() == (SIDE // 8) ** 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"resample": 5}, "resample = 5; known are Pillow's"),
        ({"crop_size": {"depth": 3}}, "height and width, or shortest"),
    ],
)
def test_preprocessing_that_is_not_known_is_named(given, message):
    config = {"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224}
    with pytest.raises(ValueError, match=message):
        seen_by_transformers("a tower", config | given)


@pytest.mark.parametrize(("edge", "resize"), [(224, 256), (384, (384, 384))])
def test_small_images_of_convnext_are_cut_and_large_ones_are_not(edge, resize):
    seen = seen_by_transformers("a ConvNeXt", {"size": {"shortest_edge": edge}, "crop_pct": 0.875})
    assert (seen.height, seen.width, seen.resize) == (edge, edge, resize)


def test_what_is_frozen_stays_in_eval_mode_and_has_no_gradient(saved, pixels):
    tower = image_tower(saved("vit")[1])
    tower.freeze()
    tower.train()
    assert not any(module.training for module in tower.network.modules())
    assert not tower.states(Images(pixels))[0].requires_grad


@pytest.mark.parametrize("kind", ["vit", "clip", "bert"])
def test_checkpointed_gradients_are_the_same(saved, pixels, captions, kind):
    gradients = []
    for checkpointed in (False, True):
        tower = (text_tower if kind == "bert" else image_tower)(saved(kind)[1])
        for module in tower.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if checkpointed:
            tower.checkpoint_gradients()
        tower.train()
        states, _ = tower.states(captions if kind == "bert" else Images(pixels))
        states.square().sum().backward()
        gradients.append({name: one.grad for name, one in tower.named_parameters() if one.grad is not None})
    plain, found = gradients
    assert plain.keys() == found.keys()
    for name in plain:
        assert_close(found[name], plain[name], **CLOSE)


def test_weights_of_another_model_are_refused(saved, tmp_path):
    _, name = saved("vit")
    folder = shutil.copytree(name.partition(":")[2], tmp_path / "vit")
    shutil.copy(Path(saved("bert")[1].partition(":")[2]) / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"vit cannot be loaded \(its weights lack .* more: another model's\); give a"):
        open_image_tower(f"transformers:{folder}").load_pretrained()


def test_a_hub_that_is_not_reached_is_one_sentence(monkeypatch):
    library = pytest.importorskip("transformers")

    def fails(*_, **__):
        raise OSError("We couldn't connect to 'https://huggingface.co'\nCheck your internet connection.")

    monkeypatch.setattr(library.AutoConfig, "from_pretrained", fails)
    for opened in (open_image_tower, lambda name: open_text_tower(name, vocabulary_size=9)):
        with pytest.raises(ValueError, match=r"^transformers:a/b cannot be loaded \(.*\); .*path of a folder") as said:
            opened("transformers:a/b")
        assert "\n" not in str(said.value)


@pytest.mark.parametrize("name", ["vit", "keras:x", "transformers:"])
def test_unknown_towers_name_the_known_ones(name):
    with pytest.raises(ValueError, match=r"there is no image tower .*; known are timm:NAME_OR_PATH, transformers:NAME"):
        open_image_tower(name)
    with pytest.raises(
        ValueError, match=r"there is no text tower .*; known are transformers:NAME_OR_PATH, open_clip:NAME"
    ):
        open_text_tower(name, vocabulary_size=9)


def test_what_is_no_encoder_of_that_side_is_refused(saved):
    with pytest.raises(ValueError, match="is no image encoder; choose a ViT"):
        open_image_tower(saved("bert")[1])
    with pytest.raises(ValueError, match="is no text encoder; choose one, such as"):
        open_text_tower(saved("vit")[1], vocabulary_size=9)


def test_padding_that_is_seen_needs_an_id(saved, tmp_path):
    folder = shutil.copytree(saved("siglip")[1].partition(":")[2], tmp_path / "siglip")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["pad_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="sees padding, and its configuration has no pad_token_id"):
        open_text_tower(f"transformers:{folder}", vocabulary_size=9)


def test_captions_beyond_what_a_tower_takes_are_refused(saved):
    tower = open_text_tower(saved("bert")[1], vocabulary_size=WORDS)
    with pytest.raises(ValueError, match=r"a caption has 17 ids, and transformers:.* takes 16; set that as its"):
        tower.states(Captions(torch.ones(1, 20, dtype=torch.long), torch.tensor([LONGEST + 1])))


def test_region_features_are_no_photographs(saved):
    with pytest.raises(ValueError, match="TransformerImage reads photographs and was given region features"):
        open_image_tower(saved("vit")[1]).states(Images(torch.rand(2, 3, 4)))


def dual(**options):
    torch.manual_seed(0)
    model = build_model("dual_encoder", feature_size=5, vocabulary_size=WORDS, **{"embedding_size": 8, **options})
    model.load_pretrained()
    return model.eval()


def test_a_pair_without_a_projection_is_the_pair_itself(saved, pixels, captions):
    model, name = saved("clip")
    native = {"image_pooling": "native", "text_pooling": "native", "project": False, "embedding_size": 6}
    ours = dual(image_tower=name, text_tower=name, **native)
    found = ours.similarity(ours.encode_images(Images(pixels)), ours.encode_captions(captions))
    for row, length in enumerate(LENGTHS.tolist()):
        ids = captions.words[row : row + 1, :length]
        theirs = model(input_ids=ids, pixel_values=normalised(pixels))
        assert_close(found[:, row], theirs.logits_per_image[:, 0] / model.logit_scale.exp(), **CLOSE)


@pytest.mark.parametrize("pooling", ["cls", "mean", "gpo"])
def test_a_side_is_pooled_projected_and_normalised(saved, pixels, captions, pooling):
    model = dual(image_tower=saved("vit")[1], image_pooling=pooling, text_tower=saved("bert")[1], text_pooling=pooling)
    vit, bert = saved("vit")[0], saved("bert")[0]
    states = vit(pixel_values=normalised(pixels)).last_hidden_state
    mean = {"cls": lambda: states[:, 0], "mean": lambda: states[:, 1:].mean(1)}
    pooled = mean.get(pooling, lambda: model.image.pool(states[:, 1:], None))()
    expected = torch.nn.functional.normalize(model.image.project(pooled), dim=1)
    assert_close(model.encode_images(Images(pixels)).vectors, expected, **CLOSE)
    found = model.encode_captions(captions).vectors
    for row, length in enumerate(LENGTHS.tolist()):
        states = bert(input_ids=captions.words[row : row + 1, :length]).last_hidden_state
        mean = {"cls": lambda: states[:, 0], "mean": lambda: states.mean(1)}  # noqa: B023  # called at once
        pooled = mean.get(pooling, lambda: model.text.pool(states, None))()  # noqa: B023
        assert_close(found[row], torch.nn.functional.normalize(model.text.project(pooled), dim=1)[0], **CLOSE)


def test_without_towers_it_is_vsepp(pixels):
    """Regions and a bidirectional GRU give the same vectors."""
    ours = dual(text_pooling="native")
    other = build_model("vsepp", feature_size=5, vocabulary_size=WORDS, embedding_size=8, bidirectional=True)
    renamed = {"project.": "image.project.", "text.": "text.encoder.words."}
    state = ours.state_dict()
    other.load_state_dict(
        {
            name: state[next(ours + name[len(theirs) :] for theirs, ours in renamed.items() if name.startswith(theirs))]
            for name in other.state_dict()
        }
    )
    images = Images(torch.rand(4, 3, 5), torch.tensor([[True, True, False]]).expand(4, -1))
    captions = Captions(torch.randint(1, WORDS, (3, 4)), torch.tensor([4, 2, 3]))
    assert_close(ours.encode_images(images).vectors, other.encode_images(images).vectors)
    assert_close(ours.encode_captions(captions).vectors, other.encode_captions(captions).vectors)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"image_pooling": "cls"},
            r'an image without a tower does not support image_pooling = "cls"; choose gpo or m',
        ),
        ({"text_pooling": "cls"}, r'caption without a tower .* text_pooling = "cls"; choose gpo or mean or native'),
        ({"image_tower": "vit", "image_pooling": "native"}, r"transformers:.* support .*; choose cls or gpo or mean"),
        ({"project": False}, r"image vectors have 5 numbers, caption vectors 8, and embedding_size is 8"),
    ],
)
def test_what_does_not_fit_is_one_sentence(saved, options, message):
    named = {key: saved(value)[1] if key.endswith("_tower") else value for key, value in options.items()}
    with pytest.raises(ValueError, match=message):
        dual(**named)


def test_a_trained_dual_encoder_is_loaded_with_its_own_weights(saved, pixels, captions, tmp_path):
    from aoq.pipeline.training.checkpoint import load_model, save_model

    options = {"feature_size": 5, "vocabulary_size": WORDS, "embedding_size": 8}
    options |= {"image_tower": saved("vit")[1], "text_tower": saved("bert")[1]}
    model = build_model("dual_encoder", **options).eval()
    save_model(tmp_path / "model.safetensors", model.state_dict(), {"name": "dual_encoder", "options": options})
    loaded = load_model(tmp_path / "model.safetensors")
    assert torch.equal(loaded.encode_images(Images(pixels)).vectors, model.encode_images(Images(pixels)).vectors)
    assert torch.equal(loaded.encode_captions(captions).vectors, model.encode_captions(captions).vectors)
