"""Detectors of torchvision: the best-scoring regions of an image (Anderson et al. 2018, "bottom-up")."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from typing_extensions import override

from aoq.models.towers.preprocessing import Sides, Whole
from aoq.pipeline.extras import import_extra, loading
from aoq.pipeline.prepare.extractor import ArrayEntry, Extractor, PixelBatch, Tokens, hash_weights
from aoq.pipeline.reading import reading

MOST_REGIONS = 36
CLASS_BIAS = "roi_heads.box_predictor.cls_score.bias"


@dataclass(frozen=True)
class Detector(Extractor):
    """An R-CNN: up to `tokens` detections per image, best score first, with the features of its box head.

    An image without detections has one region, the whole image. Rows beyond an image's regions are zero and masked.
    """

    @property
    @override
    def columns(self) -> dict[str, ArrayEntry]:
        return {**super().columns, "mask": ArrayEntry(np.dtype(np.bool_), (self.tokens,))}

    @override
    def extract(self, pixels: PixelBatch, widths: Sides, heights: Sides, device: torch.device) -> dict[str, np.ndarray]:
        arrays = {name: np.zeros((len(pixels), *kind.shape), kind.dtype) for name, kind in self.columns.items()}
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
