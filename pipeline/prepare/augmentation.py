"""Augmentation of photographs in training: a function of the seed, the epoch and the row."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int32

from aoq.models.towers.preprocessing import RGB, Preprocessing

if TYPE_CHECKING:
    from PIL.Image import Image

SCALE, RATIO, TRIES = (0.5, 1.0), (3 / 4, 4 / 3), 10
"""Limits of a crop: its fraction of the area, its width divided by its height, and the tries before it is given up."""
OPERATIONS, STRENGTH = 2, 0.5
"""RandAugment's N, and its M of 10, as in ALBEF."""
GREY = (128, 128, 128)
SIDES = re.compile(r"\b(left|right)", re.IGNORECASE)
AUGMENTING = 1
"""Separates these random numbers from those of the training steps."""


@dataclass(frozen=True)
class Augmenter:
    """The augmentation of photographs in one epoch."""

    ways: tuple[str, ...]
    """Some of "crop", "flip" and "randaugment"."""
    seed: int
    epoch: int

    def pixels(self, image: Image, row: int, seen: Preprocessing, *, may_flip: bool) -> RGB:
        """Augment the photograph in that row; the result depends only on the arguments and the fields."""
        rng = np.random.default_rng([self.seed, self.epoch, row, AUGMENTING])
        # Each way has a generator of its own, so that none changes the draws of another.
        draws = {way: rng.spawn(1)[0] for way in ("crop", "flip", "randaugment")}
        pixels = random_crop(image, seen, draws["crop"]) if "crop" in self.ways else seen.pixels(image)
        if "flip" in self.ways and may_flip and draws["flip"].random() < 0.5:
            pixels = pixels[:, ::-1]
        if "randaugment" in self.ways:
            pixels = random_operations(pixels, draws["randaugment"])
        return np.ascontiguousarray(pixels)


def may_be_flipped(
    captions: Sequence[str], image_of: Int32[np.ndarray, " captions"], images: int
) -> Bool[np.ndarray, " images"]:
    """Return which images have no caption that names a side.

    >>> may_be_flipped(["a dog left of a cat", "a bright dog"], np.array([0, 1], np.int32), 2).tolist()
    [False, True]
    """
    may = np.ones(images, dtype=np.bool_)
    may[image_of[[SIDES.search(caption) is not None for caption in captions]]] = False
    return may


def random_crop(image: Image, seen: Preprocessing, rng: np.random.Generator) -> RGB:
    """Cut a random part of the photograph, of random size and shape, and resize it for the encoder."""
    from PIL.Image import Resampling

    wide, high = image.size
    box = (0.0, 0.0, float(wide), float(high))
    for _ in range(TRIES):
        area = wide * high * rng.uniform(*SCALE)
        ratio = np.exp(rng.uniform(*np.log(RATIO)))
        width, height = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        left, top = rng.random(2)
        if width <= wide and height <= high:
            x, y = left * (wide - width), top * (high - height)
            box = (x, y, x + width, y + height)
            break
    method = Resampling[seen.interpolation.upper()]
    return np.asarray(image.resize((seen.width, seen.height), method, box=box))


def random_operations(pixels: RGB, rng: np.random.Generator) -> RGB:
    """RandAugment (Cubuk et al. 2020) with ALBEF's operations: none changes the colours that a caption may name."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(pixels))
    for number in rng.integers(len(KNOWN), size=OPERATIONS):
        image = KNOWN[number](image, STRENGTH if rng.random() < 0.5 else -STRENGTH)
    return np.asarray(image)


def _brightened(image: Image, strength: float) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Brightness(image).enhance(1 + 0.9 * strength)


def _sharpened(image: Image, strength: float) -> Image:
    from PIL import ImageEnhance

    return ImageEnhance.Sharpness(image).enhance(1 + 0.9 * strength)


def _moved(image: Image, *matrix: float) -> Image:
    """Apply an affine map of coordinates whose origin is the centre; uncovered areas are grey."""
    from PIL.Image import Resampling, Transform

    a, b, c, d, e, f = matrix
    x, y = image.width / 2, image.height / 2
    whole = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
    return image.transform(image.size, Transform.AFFINE, whole, Resampling.BILINEAR, fillcolor=GREY)


def _rotated(image: Image, strength: float) -> Image:
    angle = np.deg2rad(30 * strength)
    cosine, sine = float(np.cos(angle)), float(np.sin(angle))
    return _moved(image, cosine, sine, 0.0, -sine, cosine, 0.0)


def _by_image_ops(name: str, image: Image, strength: float) -> Image:
    from PIL import ImageOps

    changed: Image = getattr(ImageOps, name)(image)
    return changed


KNOWN: tuple[Callable[[Image, float], Image], ...] = (
    lambda image, strength: image,
    partial(_by_image_ops, "autocontrast"),
    partial(_by_image_ops, "equalize"),
    _brightened,
    _sharpened,
    _rotated,
    lambda image, strength: _moved(image, 1.0, 0.3 * strength, 0.0, 0.0, 1.0, 0.0),
    lambda image, strength: _moved(image, 1.0, 0.0, 0.0, 0.3 * strength, 1.0, 0.0),
    lambda image, strength: _moved(image, 1.0, 0.0, 0.3 * strength * image.width, 0.0, 1.0, 0.0),
    lambda image, strength: _moved(image, 1.0, 0.0, 0.0, 0.0, 1.0, 0.3 * strength * image.height),
)
"""RandAugment's operations as ALBEF chooses them, by their number."""
