"""Image towers of timm, which are tested where it is installed: the library's own numbers."""

import pytest
import torch
from torch.testing import assert_close

from aoq.models import build_model
from aoq.models.base import Images, concatenate
from aoq.models.towers.image_towers import open_image_tower
from tests.prepare import tiny
from tests.towers.conftest import CLOSE, SIDE, normalised, pretrained

VIT = {"embed_dim": 16, "depth": 2, "num_heads": 2, "img_size": SIDE, "patch_size": 8}
SWIN = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "img_size": SIDE, "window_size": 4}
ARCHITECTURES = {
    "vit_tiny_patch16_224": (VIT, 1),
    "vit_small_patch14_reg4_dinov2": (VIT, 5),
    "swin_tiny_patch4_window7_224": (SWIN, 0),
    "resnet10t": ({}, 0),
}


@pytest.fixture(scope="module", params=list(ARCHITECTURES))
def saved(request, tmp_path_factory):
    """timm's own model in eval mode, the name of its folder, and its states before the patches."""
    tiny.import_torchvision()
    library, folder = pytest.importorskip("timm"), tmp_path_factory.mktemp("timm")
    torch.manual_seed(0)
    options, prefix = ARCHITECTURES[request.param]
    return tiny.save_timm(library, folder, request.param, **options), f"timm:{folder}", prefix


@pytest.fixture
def photographs(saved):
    """Photographs of the size that the model expects."""
    seen = open_image_tower(saved[1]).preprocessing
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (4, seen.height, seen.width, 3), dtype=torch.uint8, generator=generator)


def test_states_and_vectors_are_timms(saved, photographs):
    model, name, prefix = saved
    tower = pretrained(open_image_tower(name))
    states, seen = model.forward_features(normalised(photographs)), normalised(photographs)
    if states.ndim == 4:  # maps, channels last but of a convolutional one
        states = states.flatten(1, 2) if states.shape[-1] == tower.size else states.flatten(2).transpose(1, 2)
    assert_close(tower.states(Images(photographs))[0], states[:, prefix:], **CLOSE)
    assert_close(tower.native(Images(photographs)), model(seen), **CLOSE)
    assert tower.native_size == model(seen).shape[1]
    assert ("cls" in tower.poolings) == bool(prefix)
    if prefix:
        assert_close(tower.first(Images(photographs)), states[:, 0], **CLOSE)


@pytest.mark.parametrize("pooling", ["native", "gpo"])
def test_a_dual_encoder_is_trained_and_loaded(saved, photographs, pooling):
    torch.manual_seed(0)
    options = {"feature_size": 5, "vocabulary_size": 9, "embedding_size": 8, "image_tower": saved[1]}
    model = build_model("dual_encoder", **options, image_pooling=pooling)
    model.load_pretrained()
    model.train().encode_images(Images(photographs)).vectors.square().sum().backward()
    with torch.device("meta"):
        again = build_model("dual_encoder", **options, image_pooling=pooling)
    assert again.state_dict().keys() == {*model.state_dict()}


def test_statistics_are_those_of_each_group(saved, photographs):
    """Groups of one batch equal batches encoded in turn."""
    torch.manual_seed(0)
    together, in_turn = (
        build_model("dual_encoder", feature_size=5, vocabulary_size=9, image_tower=saved[1]) for _ in "12"
    )
    in_turn.load_state_dict(together.state_dict())
    result = together.train().encode_images(Images(photographs, groups=2))
    parts = [in_turn.train().encode_images(Images(photographs[start : start + 2])) for start in (0, 2)]
    if not any(isinstance(module, torch.nn.Dropout) and module.p for module in together.modules()):
        assert_close(result.vectors, concatenate(parts).vectors, atol=1e-4, rtol=1e-4)
        assert_close([*together.buffers()], [*in_turn.buffers()], atol=1e-4, rtol=1e-4)
