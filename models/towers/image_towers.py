"""Towers that read photographs: 8-bit pixels in, patches out. A new one is a class and a line at the end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aoq.models.base import Images
from aoq.models.layers import group_by_group, has_batch_norm
from aoq.models.towers.libraries import (
    OpenClipSource,
    TransformersSource,
    find_entry,
    load_timm,
    preprocessing_of_transformers,
)
from aoq.models.towers.preprocessing import Preprocessing
from aoq.models.towers.tower import Tower, offered

CLASS_TOKENS = ("cls_token", "class_embedding")
Normalised = Float[Tensor, "images 3 height width"]


class ImageTower(Tower):
    """An encoder of photographs that normalises their 8-bit pixels by its `preprocessing`."""

    preprocessing: Preprocessing
    prefix: int
    """Number of states before those of the patches: a class token, registers."""
    network: Any

    @abstractmethod
    def tokens(self, pixels: Normalised) -> Float[Tensor, "images tokens size"]:
        """Return every state of the last layer, with the prefix."""

    def vectors(self, pixels: Normalised) -> Float[Tensor, "images native_size"]:
        return self.network(pixels)

    def states(self, items: Images) -> tuple[Float[Tensor, "images patches size"], None]:
        return self._each_group(self.tokens, items)[:, self.prefix :], None

    def first(self, items: Images) -> Float[Tensor, "images size"]:
        return self._each_group(self.tokens, items)[:, 0]

    def native(self, items: Images) -> Float[Tensor, "images native_size"]:
        return self._each_group(self.vectors, items)

    def regions(self, images: Images) -> Images:
        return Images(self.states(images)[0], groups=images.groups)

    @torch.no_grad()
    def count_patches(self) -> int:
        was_training = self.training
        self.eval()
        patches = self.states(Images(self.preprocessing.blank()))[0].shape[1]
        self.train(was_training)
        return patches

    def _each_group(self, encode: Callable[[Tensor], Tensor], images: Images) -> Tensor:
        if images.features.dtype != torch.uint8:
            raise ValueError(
                f"{type(self).__name__} reads photographs and was given region features; leave `image_tower` out, or "
                "give it 8-bit pixels (images, height, width, 3)."
            )
        groups = images.groups if self.network.training and has_batch_norm(self.network) else 1
        return group_by_group(lambda pixels: encode(self.preprocessing.normalised(pixels)), groups, images.features)


class TimmImage(ImageTower):
    """`timm:NAME`, or `timm:PATH` of a folder with its `config.json`; its own vector is the input of its head."""

    def __init__(self, name: str, *, native: bool = False) -> None:
        super().__init__()
        self.name = name
        self.network, self.preprocessing = load_timm(name, pretrained=False)
        self.prefix = int(getattr(self.network, "num_prefix_tokens", 0))
        self.size = self.network.num_features
        self.native_size = getattr(self.network, "head_hidden_size", self.size)
        self.poolings = offered(first=getattr(self.network, "cls_token", None) is not None, native=True)

    def load_pretrained(self) -> None:
        self.network.load_state_dict(load_timm(self.name, pretrained=True)[0].state_dict())

    def tokens(self, pixels: Normalised) -> Float[Tensor, "images tokens size"]:
        states: Tensor = self.network.forward_features(pixels)
        if states.ndim == 3:
            return states
        is_last = getattr(self.network, "output_fmt", "NCHW") == "NHWC"
        return states.flatten(1, 2) if is_last else states.flatten(2).transpose(1, 2)


class TransformerImage(ImageTower):
    """The last hidden states of `transformers:NAME_OR_PATH`; half of a pair also has its own vector."""

    def __init__(self, name: str, *, native: bool = False) -> None:
        super().__init__()
        self.source = source = TransformersSource.open(name, "Vision", native=native)
        config = source.config
        if getattr(config, "num_channels", None) is None:
            raise ValueError(f"{name} is not an image encoder; choose a ViT, a Swin or a CLIP.")
        if getattr(config, "mask_ratio", None):
            raise ValueError(f"{name} hides random parts of each picture; choose an encoder that sees all of it.")
        self.preprocessing = preprocessing_of_transformers(name)
        self.network = source.build()
        self.size = getattr(config, "hidden_size", None) or config.hidden_sizes[-1]
        parameters = [parameter for parameter, _ in self.network.named_parameters()]
        has_class = any(parameter.endswith(CLASS_TOKENS) for parameter in parameters)
        distils = any(parameter.endswith("distillation_token") for parameter in parameters)  # DeiT's
        self.prefix = has_class + distils + getattr(config, "num_register_tokens", 0)
        self.poolings = offered(first=has_class, native=source.is_half)
        if source.is_half:
            self.native_size = config.projection_dim if hasattr(config, "projection_dim") else config.hidden_size

    def pair_numbers(self) -> dict[str, float]:
        return self.source.numbers() if self.source.is_half else super().pair_numbers()

    def tokens(self, pixels: Normalised) -> Float[Tensor, "images tokens size"]:
        states: Tensor = self.network(pixel_values=pixels).last_hidden_state
        return states.flatten(2).transpose(1, 2) if states.ndim == 4 else states

    def vectors(self, pixels: Normalised) -> Float[Tensor, "images native_size"]:
        output = self.network(pixel_values=pixels)
        vectors: Tensor | None = getattr(output, "image_embeds", None)
        return output.pooler_output if vectors is None else vectors


class OpenClipImage(ImageTower):
    """The image side of an open_clip pair, `open_clip:NAME/TAG` or `open_clip:PATH`, with the pair's own vector."""

    def __init__(self, name: str, *, native: bool = False) -> None:
        super().__init__()
        self.source = OpenClipSource.open(name)
        self.network = self.source.build().visual
        self.preprocessing = self.source.preprocessing(self.network)
        trunk = getattr(self.network, "trunk", self.network)  # a network of timm
        has_class = any(hasattr(trunk, token) for token in CLASS_TOKENS)
        self.prefix = int(getattr(trunk, "num_prefix_tokens", has_class))
        with torch.no_grad():
            blank = self.preprocessing.normalised(self.preprocessing.blank())
            self.network.eval()
            self.size = self.tokens(blank).shape[2]
            self.native_size = self.network(blank).shape[1]
            self.network.train()
        self.poolings = offered(first=has_class, native=True)
        if not native:  # the layers that only make the pair's own vector would have no gradient
            if hasattr(self.network, "proj"):
                self.network.proj = None
            if hasattr(self.network, "head"):
                self.network.head = nn.Sequential()

    def pair_numbers(self) -> dict[str, float]:
        return self.source.numbers()

    def tokens(self, pixels: Normalised) -> Float[Tensor, "images tokens size"]:
        options = {"indices": 1, "normalize_intermediates": True, "intermediates_only": True}
        output = self.network.forward_intermediates(pixels, output_extra_tokens=self.prefix > 0, **options)
        (maps,) = output["image_intermediates"]
        prefix = output.get("image_intermediates_prefix", [])
        return torch.cat([*prefix, maps.flatten(2).transpose(1, 2)], dim=1)


IMAGE_TOWERS: dict[str, Callable[..., ImageTower]] = {
    "timm": TimmImage,
    "transformers": TransformerImage,
    "open_clip": OpenClipImage,
}


def open_image_tower(name: str, *, native: bool = False) -> ImageTower:
    """Open an encoder of photographs with random weights; `native` adds the layers that make its own vector."""
    return find_entry(name, IMAGE_TOWERS, "image tower")(name, native=native)
