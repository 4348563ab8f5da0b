"""Towers give their library's own numbers, and can be frozen, checkpointed and cut into layers."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import Captions, Images
from aoq.models.towers import text_towers
from aoq.models.towers.image_towers import open_image_tower
from aoq.models.towers.preprocessing import seen_by_transformers
from aoq.models.towers.text_towers import open_text_tower
from tests.towers.conftest import CLOSE, LONGEST, SIDE, VISION, WORDS, normalised, pretrained

LENGTHS = torch.tensor([5, 7, 3])


@pytest.fixture
def captions():
    """Ids that end with 2, the end of a text; noise follows a caption's end."""
    words = torch.randint(3, WORDS, (3, 9), generator=torch.Generator().manual_seed(2))
    words[torch.arange(3), LENGTHS - 1] = WORDS - 1  # the highest id ends a text, which is how CLIP finds it
    return Captions(words, LENGTHS)


def alone(captions, row, model=None):
    """The ids of one caption; padded as SigLIP was trained, which sees padding, for its `model`."""
    ids = captions.words[row : row + 1, : LENGTHS[row]]
    if model is None or model.config.model_type != "siglip":
        return ids
    return F.pad(ids, (0, LONGEST - ids.shape[1]), value=model.config.text_config.pad_token_id)


def image_tower(name, *, native=False):
    return pretrained(open_image_tower(name, native=native))


def text_tower(name, *, native=False):
    return pretrained(open_text_tower(name, vocabulary_size=WORDS, native=native))


@pytest.mark.parametrize(("kind", "prefix"), [("vit", 1), ("dinov2", 3), ("swin", 0), ("resnet", 0)])
def test_patches_are_the_librarys_last_states_after_the_prefix(saved, pixels, kind, prefix):
    model, name = saved(kind)
    tower, states = image_tower(name), model(pixel_values=normalised(pixels)).last_hidden_state
    states = states if states.ndim == 3 else states.flatten(2).transpose(1, 2)
    patches, mask = tower.states(Images(pixels))
    assert mask is None
    assert tower.size == patches.shape[2]
    assert_close(patches, states[:, prefix:], **CLOSE)
    assert ("cls" in tower.poolings) == bool(prefix)
    if prefix:
        assert_close(tower.first(Images(pixels)), states[:, 0], **CLOSE)
    assert "native" not in tower.poolings
    assert torch.equal(tower.regions(Images(pixels, groups=5)).features, patches)
    tower.freeze()
    tower.train()
    assert not any(module.training for module in tower.network.modules())
    assert not tower.states(Images(pixels))[0].requires_grad


@pytest.mark.parametrize(("kind", "size"), [("clip", 6), ("siglip", 16)])
def test_the_vectors_and_numbers_of_a_pair_are_the_librarys(saved, pixels, captions, kind, size):
    model, name = saved(kind)
    images, texts = image_tower(name, native=True), text_tower(name, native=True)
    assert images.native_size == texts.native_size == size
    expected = model.get_image_features(pixel_values=normalised(pixels)).pooler_output
    assert_close(images.native(Images(pixels)), expected, **CLOSE)
    for row in range(3):
        expected = model.get_text_features(input_ids=alone(captions, row, model)).pooler_output[0]
        assert_close(texts.native(captions)[row], expected, **CLOSE)
    numbers = {"temperature": 1 / model.logit_scale.exp().item()}
    if kind == "siglip":
        numbers["bias"] = model.logit_bias.item()
    assert images.pair_numbers() == pytest.approx(numbers)


@pytest.mark.parametrize("kind", ["bert", "clip", "siglip"])
def test_states_of_captions_are_the_librarys_and_zero_at_padding(saved, captions, kind):
    model, name = saved(kind)
    network, tower = getattr(model, "text_model", model), text_tower(name)
    states, mask = tower.states(captions)
    assert torch.equal(mask.sum(1), LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        expected = network(input_ids=alone(captions, row, model)).last_hidden_state[0, :length]
        assert_close(states[row, :length], expected, **CLOSE)
        assert not states[row, length:].any()
    assert ("cls" in tower.poolings) == (kind == "bert")


@pytest.mark.parametrize("kind", ["bert", "clip"])
def test_captions_read_by_length_have_the_states_and_gradients_of_all_at_once(saved, captions, monkeypatch, kind):
    found = []
    for together in (2, 3):
        monkeypatch.setattr(text_towers, "TOGETHER", together)
        tower = text_tower(saved(kind)[1])
        states, _ = tower.states(captions)
        (states * torch.arange(3).view(-1, 1, 1)).square().sum().backward()
        gradients = [one.grad for one in tower.parameters() if one.grad is not None]
        assert gradients
        found.append([states, *gradients])
    assert_close(*found, **CLOSE)


@pytest.mark.parametrize("kind", ["vit", "clip", "swin", "siglip"])
def test_layers_are_all_parameters_from_below_to_above(saved, kind):
    tower = open_image_tower(saved(kind)[1])
    layers, names = tower.layers(), {id(one): name for name, one in tower.network.named_parameters()}
    assert sorted(id(one) for layer in layers for one in layer) == sorted(names)
    assert len(layers) == 2 + 2
    assert all("embedding" in names[id(one)] or "pre_layrnorm" in names[id(one)] for one in layers[0])
    assert all("norm" in names[id(one)] or "head" in names[id(one)] for one in layers[-1])


def test_blocks_of_all_stages_are_layers(saved):
    """The longest stage is not the whole: parameters between stages belong to the block below."""
    library = pytest.importorskip("transformers")
    config = library.SwinConfig(image_size=64, window_size=2, embed_dim=8, depths=[2, 2, 3], num_heads=[1, 1, 1])
    tower = open_image_tower(saved("swin")[1])
    tower.network = library.SwinModel(config, add_pooling_layer=False)
    layers, names = tower.layers(), {id(one): name for name, one in tower.network.named_parameters()}
    assert len(layers) == 7 + 2
    assert all("embedding" in names[id(one)] for one in layers[0])
    assert any("layers.0.downsample" in names[id(one)] for one in layers[2])
    assert {names[id(one)] for one in layers[-1]} == {"layernorm.weight", "layernorm.bias"}


def test_frozen_layers_keep_their_statistics(saved, pixels):
    tower = image_tower(saved("resnet")[1])
    tower.freeze_below(1)
    tower.train().states(Images(pixels))
    moved = [name for name, one in tower.network.named_buffers() if name.endswith("running_mean") and one.any()]
    assert moved
    assert not any("embedder" in name for name in moved)


def test_a_distillation_token_is_no_patch(saved, tmp_path):
    library = pytest.importorskip("transformers")
    model = library.DeiTModel(library.DeiTConfig(**VISION), add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    shutil.copy(Path(saved("vit")[1].partition(":")[2]) / "preprocessor_config.json", tmp_path)
    assert image_tower(f"transformers:{tmp_path}").count_patches() == (SIDE // 8) ** 2


def test_preprocessing_of_transformers():
    config = {"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": 224}
    for change, message in (
        ({"resample": 5}, "resample = 5; known are Pillow's"),
        ({"crop_size": {"depth": 3}}, "height and width, or shortest"),
    ):
        with pytest.raises(ValueError, match=message):
            seen_by_transformers("a tower", config | change)
    for edge, resize in ((224, 256), (384, (384, 384))):  # ConvNeXt cuts small images, and large ones not
        seen = seen_by_transformers("a ConvNeXt", {"size": {"shortest_edge": edge}, "crop_pct": 0.875})
        assert (seen.height, seen.width, seen.resize) == (edge, edge, resize)


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
    plain, recomputed = gradients
    assert plain.keys() == recomputed.keys()
    for name in plain:
        assert_close(recomputed[name], plain[name], **CLOSE)


def test_weights_of_another_model_are_refused(saved, tmp_path):
    _, name = saved("vit")
    folder = shutil.copytree(name.partition(":")[2], tmp_path / "vit")
    shutil.copy(Path(saved("bert")[1].partition(":")[2]) / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"vit cannot be loaded \(it lacks .* more weights, .*model\); give a"):
        open_image_tower(f"transformers:{folder}").load_pretrained()


@pytest.mark.parametrize("name", ["vit", "keras:x", "transformers:"])
def test_unknown_towers_name_the_known_ones(name):
    with pytest.raises(ValueError, match=r"there is no image tower .*; known are timm:NAME_OR_PATH, transformers:NAME"):
        open_image_tower(name)
    with pytest.raises(ValueError, match=r"there is no text tower .*; known are transformers:NAME_OR_PATH, open_clip:"):
        open_text_tower(name, vocabulary_size=9)


def test_an_encoder_that_does_not_fit_is_refused(saved, tmp_path):
    with pytest.raises(ValueError, match="is not an image encoder; choose a ViT"):
        open_image_tower(saved("bert")[1])
    with pytest.raises(ValueError, match="hides random parts of each picture; choose an encoder that sees all of it"):
        open_image_tower(saved("mae")[1])
    assert "cls" not in open_text_tower(saved("gpt2")[1], vocabulary_size=WORDS).poolings  # it has seen one id
    with pytest.raises(ValueError, match="is not a text encoder; choose one, such as"):
        open_text_tower(saved("vit")[1], vocabulary_size=9)
    with pytest.raises(ValueError, match="a TransformerImage by itself has no temperature; give"):
        open_image_tower(saved("vit")[1]).pair_numbers()
    with pytest.raises(ValueError, match="TransformerImage reads photographs and was given region features"):
        open_image_tower(saved("vit")[1]).states(Images(torch.rand(2, 3, 4)))
    tower = open_text_tower(saved("bert")[1], vocabulary_size=WORDS)
    with pytest.raises(ValueError, match=r"a caption has 17 ids, but transformers:.* takes 16; set that as its"):
        tower.states(Captions(torch.ones(1, 20, dtype=torch.long), torch.tensor([LONGEST + 1])))
    folder = shutil.copytree(saved("siglip")[1].partition(":")[2], tmp_path / "siglip")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["pad_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="sees padding, but its configuration has no pad_token_id"):
        open_text_tower(f"transformers:{folder}", vocabulary_size=9)


def dual(**options):
    torch.manual_seed(0)
    model = build_model("dual_encoder", feature_size=5, vocabulary_size=WORDS, **{"embedding_size": 8, **options})
    model.load_pretrained()
    return model.eval()


@pytest.mark.parametrize("pooling", ["cls", "mean", "gpo"])
def test_a_side_is_pooled_projected_and_normalised(saved, pixels, captions, pooling):
    model = dual(image_tower=saved("vit")[1], image_pooling=pooling, text_tower=saved("bert")[1], text_pooling=pooling)

    def expected(side, states, prefix):
        pooled = {"cls": states[:, 0], "mean": states[:, prefix:].mean(1)}
        vectors = pooled[pooling] if pooling in pooled else side.pool(states[:, prefix:], None)
        return F.normalize(side.project(vectors), dim=1)

    states = saved("vit")[0](pixel_values=normalised(pixels)).last_hidden_state
    assert_close(model.encode_images(Images(pixels)).vectors, expected(model.image, states, 1), **CLOSE)
    vectors = model.encode_captions(captions).vectors
    for row in range(3):
        states = saved("bert")[0](input_ids=alone(captions, row)).last_hidden_state
        assert_close(vectors[row], expected(model.text, states, 0)[0], **CLOSE)


def test_without_towers_it_is_vsepp(pixels):
    """Regions and a bidirectional GRU give the same vectors."""
    ours = dual(text_pooling="native")
    other = build_model("vsepp", feature_size=5, vocabulary_size=WORDS, embedding_size=8, bidirectional=True)
    renamed = {"project.": "image.project.", "text.": "text.encoder.words."}
    state = ours.state_dict()
    for name in other.state_dict():
        theirs = next(prefix for prefix in renamed if name.startswith(prefix))
        other.get_parameter(name).data = state[renamed[theirs] + name[len(theirs) :]]
    images = Images(torch.rand(4, 3, 5), torch.tensor([[True, True, False]]).expand(4, -1))
    captions = Captions(torch.randint(1, WORDS, (3, 4)), torch.tensor([4, 2, 3]))
    assert_close(ours.encode_images(images).vectors, other.encode_images(images).vectors)
    assert_close(ours.encode_captions(captions).vectors, other.encode_captions(captions).vectors)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_pooling": "cls"}, r'image without a tower does not support image_pooling = "cls"; choose gpo or m'),
        ({"text_pooling": "cls"}, r'caption without a tower .* text_pooling = "cls"; choose gpo or mean or native'),
        ({"image_tower": "vit", "image_pooling": "native"}, r"transformers:.* support .*; choose cls or gpo or mean"),
        ({"project": False}, r"image vectors have 5 numbers, caption vectors 8, and embedding_size is 8"),
    ],
)
def test_options_that_do_not_fit_are_one_sentence(saved, options, message):
    named = {key: saved(value)[1] if key.endswith("_tower") else value for key, value in options.items()}
    with pytest.raises(ValueError, match=message):
        dual(**named)
