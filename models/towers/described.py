"""Preprocessing of images, as the encoders' libraries describe it."""

from __future__ import annotations

import math
from typing import Any

from aoq.models.towers.preprocessing import Interpolation, Preprocessing

RESAMPLE: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Interpolation by Pillow's numbers."""
CONVNEXT_SQUASHES = 384
"""Smallest side from which ConvNeXt resizes images without a cut."""


def seen_by_transformers(name: str, config: dict[str, Any]) -> Preprocessing:
    """Read the preprocessing from `preprocessor_config.json`."""
    given = config.get("size")
    size = {"shortest_edge": given} if isinstance(given, int) else dict(given or {})
    if config.get("do_pad") or not (size.keys() >= {"height", "width"} or "shortest_edge" in size):
        raise ValueError(f"{name} wants images of sizes {size} with padding or without; choose one of a fixed size.")
    resample = config.get("resample", 3)
    if resample not in RESAMPLE:
        raise ValueError(f"{name} resizes by resample = {resample}; known are Pillow's {sorted(RESAMPLE)}.")
    resize = size.get("shortest_edge") or (size["height"], size["width"])
    crop = config.get("crop_size") if config.get("do_center_crop") else None
    if crop is None and config.get("crop_pct") and isinstance(resize, int) and resize < CONVNEXT_SQUASHES:
        crop, resize = resize, int(resize / config["crop_pct"])  # ConvNeXt's: resized to more, and cut
    elif config.get("crop_pct") and isinstance(resize, int) and crop is None:
        resize = (resize, resize)
    if isinstance(crop, dict):
        height, width = (crop.get(side) or crop.get("shortest_edge") for side in ("height", "width"))
        if not (height and width):
            raise ValueError(f"{name} crops to {crop}; known are height and width, or shortest_edge.")
    elif isinstance(crop, int):
        height = width = crop
    else:
        height, width = (resize, resize) if isinstance(resize, int) else resize
    is_normalised = config.get("do_normalize", True)
    mean, std = (
        tuple(config[key]) if is_normalised and config.get(key) else default
        for key, default in (("image_mean", (0.0,) * 3), ("image_std", (1.0,) * 3))
    )
    return Preprocessing(height, width, resize, mean, std, RESAMPLE[resample])


def seen_by_timm(name: str, config: dict[str, Any]) -> Preprocessing:
    """Read the preprocessing from a data configuration of timm."""
    _, height, width = config["input_size"]
    scaled = math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"])
    if config["crop_mode"] == "border" or (config["crop_mode"] == "center" and height != width):
        raise ValueError(f"{name} pads images ({config['crop_mode']}), which is not supported")
    resize = scaled if config["crop_mode"] == "squash" else scaled[0]
    return Preprocessing(height, width, resize, tuple(config["mean"]), tuple(config["std"]), config["interpolation"])


def seen_by_open_clip(name: str, config: dict[str, Any]) -> Preprocessing:
    """Read a preprocessing configuration of open_clip."""
    size = config["size"]
    height, width = (size, size) if isinstance(size, int) else size
    if config["resize_mode"] == "longest" or (config["resize_mode"] == "shortest" and height != width):
        raise ValueError(f"{name} pads images ({config['resize_mode']}), which is not supported")
    resize = height if config["resize_mode"] == "shortest" else (height, width)
    return Preprocessing(height, width, resize, tuple(config["mean"]), tuple(config["std"]), config["interpolation"])
