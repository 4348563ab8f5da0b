"""Base of towers that read photographs: 8-bit pixels of the data, and patches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from aoq.models.base import Images
from aoq.models.regions import group_by_group
from aoq.models.towers.preprocessing import Preprocessing
from aoq.models.towers.tower import Tower

Pixels = UInt8[Tensor, "images height width 3"]


class ImageTower(Tower):
    """An encoder of photographs that normalises their 8-bit pixels by its `preprocessing`."""

    preprocessing: Preprocessing
    has_class: bool
    """True if the first state is a class token's."""

    @abstractmethod
    def tokens(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images tokens size"]:
        """Return every state of the last layer, class token and registers included."""

    @abstractmethod
    def vectors(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images native_size"]:
        """Return the encoder's own vectors."""

    @property
    @abstractmethod
    def prefix(self) -> int:
        """Number of states before those of the patches."""

    def states(self, items: Images) -> tuple[Float[Tensor, "images patches size"], None]:
        """Return the state of every patch."""
        return self._each_group(self.tokens, items)[:, self.prefix :], None

    def first(self, items: Images) -> Float[Tensor, "images size"]:
        return self._each_group(self.tokens, items)[:, 0]

    def native(self, items: Images) -> Float[Tensor, "images native_size"]:
        return self._each_group(self.vectors, items)

    def regions(self, images: Images) -> Images:
        """Return the patches as region features."""
        return Images(self.states(images)[0], groups=images.groups)

    @torch.no_grad()
    def count_patches(self) -> int:
        """Return the number of patches of an image."""
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
        has_statistics = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in self.network.modules())
        groups = images.groups if has_statistics and self.network.training else 1
        return group_by_group(lambda pixels: encode(self.preprocessing.normalised(pixels)), groups, images.features)
