"""A tiny model of each library that gives extractors, with weights of its own, saved in a folder; and its name."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.prepare.conftest import SEEN, TINY, save_clip

DETECTOR = "fasterrcnn_mobilenet_v3_large_320_fpn"
CLIP = {
    "model_cfg": {
        "embed_dim": 6,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 8},
        "text_cfg": {"context_length": 8, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1},
    },
    "preprocess_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
}
_operators = torch.library.Library("torchvision", "FRAGMENT")


def import_torchvision():
    """Imported; of another build than torch it has no operators, and gets slow ones."""
    if "torchvision" in sys.modules:
        return sys.modules["torchvision"]
    if not hasattr(torch.ops.torchvision, "nms"):
        for name in ("nms", "qnms"):
            _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torchvision = pytest.importorskip("torchvision")
    extension = sys.modules["torchvision.extension"]
    if not extension._has_ops():
        _operators.impl("nms", _nms, "CPU")
        extension._has_ops = lambda: True
        alignment = sys.modules["torchvision.ops.roi_align"]  # which has one in Python, that it would compile
        alignment._roi_align = alignment._roi_align.__wrapped__
    return torchvision


def _nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The best box, then the best that overlaps none of the kept ones, and so on."""
    from torchvision.ops import box_iou

    left, kept, overlap = scores.sort(descending=True, stable=True).indices, [], box_iou(boxes, boxes)
    while len(left):
        kept.append(left[0])
        left = left[overlap[left[0], left] <= iou_threshold]
    return torch.stack(kept) if kept else torch.empty(0, dtype=torch.int64)


def efficientnet(folder: Path) -> str:
    pytest.importorskip("efficientnet_lite_pytorch")
    return "efficientnet-lite0"


def transformers(folder: Path) -> str:
    library = pytest.importorskip("transformers")
    config = library.ViTConfig(**TINY, image_size=32, patch_size=8)
    library.ViTModel(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": {"height": 32, "width": 32}} | SEEN))
    return f"transformers:{folder}"


def timm(folder: Path) -> str:
    import_torchvision()
    library = pytest.importorskip("timm")
    options = {"img_size": 32, "embed_dim": 16, "depth": 1, "num_heads": 2}
    save_timm(library, folder, "vit_tiny_patch16_224", **options)
    return f"timm:{folder}"


def save_timm(library, folder: Path, name: str, **options):
    from safetensors.torch import save_file

    model = library.create_model(name, num_classes=0, **options).eval()
    folder.mkdir(exist_ok=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    side = options.get("img_size", model.pretrained_cfg["input_size"][-1])
    config = {"input_size": [3, side, side], "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "crop_pct": 0.8}
    content = {"architecture": name, "num_classes": 0, "model_args": options}
    content["pretrained_cfg"] = config | {"interpolation": "bicubic"}
    (folder / "config.json").write_text(json.dumps(content))
    return model


def open_clip(folder: Path) -> str:
    import_torchvision()
    model = pytest.importorskip("open_clip").CLIP(**CLIP["model_cfg"])
    (folder / "open_clip_config.json").write_text(json.dumps(CLIP))
    torch.save(model.state_dict(), folder / "open_clip_pytorch_model.bin")
    return f"open_clip:{folder}"


def sentence_transformers(folder: Path) -> str:
    import_torchvision()
    library = pytest.importorskip("sentence_transformers")
    save_clip(folder / "clip", model_max_length=8)
    library.SentenceTransformer(str(folder / "clip"), device="cpu").save(str(folder / "model"))
    return f"sentence-transformers:{folder / 'model'}"


def torchvision(folder: Path) -> str:
    models = import_torchvision().models
    network = models.get_model(DETECTOR, weights=None, weights_backbone=None, num_classes=4)
    torch.save(network.state_dict(), folder / "weights.pth")
    return f"torchvision:{DETECTOR}/{folder / 'weights.pth'}"


MAKERS: dict[str, Callable[[Path], str]] = {
    "efficientnet-lite0": efficientnet,
    "transformers": transformers,
    "timm": timm,
    "open_clip": open_clip,
    "sentence-transformers": sentence_transformers,
    "torchvision": torchvision,
}
