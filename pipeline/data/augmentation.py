"""Augmentation of photographs in training. Imported late: it needs Pillow, which an extra installs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageOps
from PIL.Image import Resampling, Transform

from aoq.models.towers.preprocessing import RGB, Preprocessing

SCALE, RATIO, TRIES = (0.5, 1.0), (3 / 4, 4 / 3), 10
"""Limits of a crop: its fraction of the area, its width divided by its height, and the tries before it is given up."""
OPERATIONS, STRENGTH = 2, 0.5
"""RandAugment's N, and its M of 10, as in ALBEF."""
GREY = (128, 128, 128)
AUGMENTING = 1
"""Separates these random numbers from those of the training steps."""


def augment(
    image: Image.Image, seen: Preprocessing, ways: tuple[str, ...], seed: int, epoch: int, row: int, *, may_flip: bool
) -> RGB:
    """Augment a row's photograph by some of "crop", "flip" and "randaugment", as a function of the arguments."""
    rng = np.random.default_rng([seed, epoch, row, AUGMENTING])
    # Each way has a generator of its own, so that none changes the draws of another.
    draws = {way: rng.spawn(1)[0] for way in ("crop", "flip", "randaugment")}
    pixels = random_crop(image, seen, draws["crop"]) if "crop" in ways else seen.pixels(image)
    if "flip" in ways and may_flip and draws["flip"].random() < 0.5:
        pixels = pixels[:, ::-1]
    if "randaugment" in ways:
        pixels = random_operations(pixels, draws["randaugment"])
    return np.ascontiguousarray(pixels)


def random_crop(image: Image.Image, seen: Preprocessing, rng: np.random.Generator) -> RGB:
    """Cut a random part of the photograph, of random size and shape, and resize it for the encoder."""
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
    image = Image.fromarray(np.ascontiguousarray(pixels))
    for number in rng.integers(len(RANDOM_OPERATIONS), size=OPERATIONS):
        image = RANDOM_OPERATIONS[number](image, STRENGTH if rng.random() < 0.5 else -STRENGTH)
    return np.asarray(image)


def _move(image: Image.Image, *matrix: float) -> Image.Image:
    """Apply an affine map of coordinates whose origin is the centre; uncovered areas are grey."""
    a, b, c, d, e, f = matrix
    x, y = image.width / 2, image.height / 2
    whole = (a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y)
    return image.transform(image.size, Transform.AFFINE, whole, Resampling.BILINEAR, fillcolor=GREY)


RANDOM_OPERATIONS: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda image, _: image,
    lambda image, _: ImageOps.autocontrast(image),
    lambda image, _: ImageOps.equalize(image),
    lambda image, strength: ImageEnhance.Brightness(image).enhance(1 + 0.9 * strength),
    lambda image, strength: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * strength),
    lambda image, strength: image.rotate(-30 * strength, Resampling.BILINEAR, fillcolor=GREY),
    lambda image, strength: _move(image, 1.0, 0.3 * strength, 0.0, 0.0, 1.0, 0.0),
    lambda image, strength: _move(image, 1.0, 0.0, 0.0, 0.3 * strength, 1.0, 0.0),
    lambda image, strength: _move(image, 1.0, 0.0, 0.3 * strength * image.width, 0.0, 1.0, 0.0),
    lambda image, strength: _move(image, 1.0, 0.0, 0.0, 0.0, 1.0, 0.3 * strength * image.height),
)
"""RandAugment's operations as ALBEF chooses them, by their number."""
