"""Decode one image of any format, or give the reason why it cannot be decoded.

The first frame of an animation is taken, rotations in EXIF are applied, CMYK, grey, palette and 16-bit pixels become
8-bit RGB, and transparent areas become white.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aoq.pipeline.extras import import_extra

if TYPE_CHECKING:
    from PIL.Image import Image

DECODED_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that Pillow decodes itself; it would pass others to external programs."""
MOST_BYTES = 500_000_000
_MOST_PIXELS = 178_956_970
"""Pillow's own limit: half a gigabyte as RGB."""
_UNREADABLE = f"is no {', '.join(DECODED_FORMATS[:-1])} or {DECODED_FORMATS[-1]}, or is damaged"
_ORIENTATION = 0x0112
"""EXIF's tag; from 5 on, width and height are exchanged."""


class Decoded(NamedTuple):
    """An upright RGB image, its full size, and the changes made: "animated", "rotated", "CMYK", …"""

    image: Image
    width: int
    height: int
    changes: tuple[str, ...]


class _UnsupportedError(ValueError):
    """A kind of image that has no displayable pixels."""


def decode(encoded: bytes, least: int = 0, most_pixels: int = _MOST_PIXELS) -> Decoded:
    """Decode the image in a file's bytes.

    A JPEG is decoded at a half, a quarter or an eighth of its size if its sides stay above `least` pixels, which
    takes a fraction of the time.
    """
    pillow = import_extra("PIL.Image", "prepare", "reading images")
    if not encoded:
        raise ValueError("is empty")
    if len(encoded) > MOST_BYTES:
        raise ValueError(f"has more than {MOST_BYTES / 1e6:.0f} MB")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with pillow.open(io.BytesIO(encoded), formats=DECODED_FORMATS) as opened:
                if opened.width * opened.height > most_pixels:
                    raise pillow.DecompressionBombError
                return _upright(opened, least)
        except pillow.DecompressionBombError:
            raise ValueError(f"has more than {most_pixels / 1e6:.0f} megapixels") from None
        except MemoryError:
            raise ValueError("takes more memory than is available") from None
        except Exception as error:  # Pillow's readers raise errors of any kind on hostile files
            raise ValueError(str(error) if isinstance(error, _UnsupportedError) else _UNREADABLE) from None


def _upright(opened: Image, least: int) -> Decoded:
    from PIL import ImageOps

    (width, height), changes = opened.size, []
    if getattr(opened, "is_animated", False) and opened.format != "MPO":
        changes.append("animated")
    if least and min(width, height) > least:
        shrink = least / min(width, height)
        opened.draft("RGB", (round(width * shrink), round(height * shrink)))
    opened.load()
    image = ImageOps.exif_transpose(opened)
    orientation = opened.getexif().get(_ORIENTATION, 1)
    if orientation in range(2, 9):
        changes.append("rotated")
    if orientation in range(5, 9):
        width, height = height, width
    if image.mode not in ("RGB", "L"):
        image = _eight_bits(image, changes)
    return Decoded(image.convert("RGB"), width, height, tuple(changes))


def _eight_bits(image: Image, changes: list[str]) -> Image:
    """Convert an image of any mode to one that Pillow converts to RGB without loss of meaning."""
    pillow = import_extra("PIL.Image", "prepare", "reading images")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise _UnsupportedError("has whole numbers beyond 16 bits as pixels")
        changes.append("16-bit")
        # Cameras and scanners write 10, 12 or 14 bits into 16, whose upper eight are dark or empty.
        bits = max(8, -(-int(values.max()).bit_length() // 2) * 2)
        eight: Image = pillow.fromarray((values >> (bits - 8)).astype(np.uint8))
        return eight
    if image.mode == "F":
        raise _UnsupportedError("has real numbers as pixels")
    if image.has_transparency_data:
        changes.append("transparent")
        seen = image.convert("RGBA")
        opaque: Image = pillow.alpha_composite(pillow.new("RGBA", seen.size, "white"), seen)
        return opaque
    if image.mode == "CMYK":
        changes.append("CMYK")
    return image


def thumbnail(image: Image, width: int) -> bytes:
    """Make a JPEG whose longer side has at most `width` pixels."""
    small, file = image.copy(), io.BytesIO()
    small.thumbnail((width, width))
    small.save(file, "JPEG", quality=80)
    return file.getvalue()
