"""Decode one image of any format, or give the reason why it cannot be decoded; and thumbnails, for reports and pages.

The first frame of an animation is taken, rotations in EXIF are applied, CMYK, grey, palette and 16-bit pixels become
8-bit RGB, and transparent areas become white.
"""

from __future__ import annotations

import base64
import io
import logging
import os
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from aoq.pipeline.data.demo import labels_path, read_labels
from aoq.pipeline.data.demo_scenes import OBJECT_COLOURS, OBJECTS, UNLABELLED
from aoq.pipeline.data.folder import Split
from aoq.pipeline.extras import import_extra
from aoq.pipeline.reading import read_file

if TYPE_CHECKING:
    from PIL.Image import Image

logger = logging.getLogger(__name__)

DECODED_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that Pillow decodes itself; it would pass others to external programs."""
MOST_BYTES = 500_000_000
_MOST_PIXELS = 178_956_970
"""Pillow's own limit: half a gigabyte as RGB."""
_UNREADABLE = f"is not {', '.join(DECODED_FORMATS[:-1])} or {DECODED_FORMATS[-1]}, or is damaged"
_ORIENTATION = 0x0112
"""EXIF's tag; from 5 on, width and height are exchanged."""
WIDTH = 200
_SMALL = 50_000_000
"""Largest number of bytes, and of pixels, of a picture."""
_LINKED = "is a link out of thumbs/, which is not followed; copy the picture, or make thumbs itself a link"
DECODING = threading.Lock()
SHADES = {"red": "#d33", "blue": "#36c", "green": "#2a2", "yellow": "#ec0", "black": "#222", "white": "#fff"}
SHADES |= {"pink": "#f8a", "brown": "#853"}


class Decoded(NamedTuple):
    """An upright RGB image, and its full size."""

    image: Image
    width: int
    height: int


class _UnsupportedError(ValueError):
    """A kind of image that has no displayable pixels."""


def decode(encoded: bytes, least: int = 0, most_pixels: int = _MOST_PIXELS) -> Decoded:
    """Decode the image in a file's bytes.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size, much faster, if its sides stay above `least` pixels.
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

    width, height = opened.size
    if least and min(width, height) > least:
        shrink = least / min(width, height)
        opened.draft("RGB", (round(width * shrink), round(height * shrink)))
    opened.load()
    image = ImageOps.exif_transpose(opened)
    if opened.getexif().get(_ORIENTATION) in range(5, 9):
        width, height = height, width
    if image.mode not in ("RGB", "L") or image.has_transparency_data:
        image = _eight_bits(image)
    return Decoded(image.convert("RGB"), width, height)


def _eight_bits(image: Image) -> Image:
    """Convert an image of any mode to one that Pillow converts to RGB without loss of meaning."""
    pillow = import_extra("PIL.Image", "prepare", "reading images")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise _UnsupportedError("has integer pixels of more than 16 bits")
        # Cameras and scanners write 10, 12 or 14 bits into 16, whose upper eight are dark or empty.
        bits = max(8, -(-int(values.max()).bit_length() // 2) * 2)
        image = pillow.fromarray((values >> (bits - 8)).astype(np.uint8))
    elif image.mode == "F":
        raise _UnsupportedError("has floating-point pixels")
    elif image.has_transparency_data:
        seen = image.convert("RGBA")
        image = pillow.alpha_composite(pillow.new("RGBA", seen.size, "white"), seen)
    return image


class Picture(NamedTuple):
    """A file's content, its media type, and the size to show it at, in pixels."""

    media_type: str
    content: bytes
    width: int
    height: int

    @property
    def uri(self) -> str:
        """The picture as a data URI."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.content).decode()}"


def thumbnail(image: Image) -> Picture:
    """Make a JPEG whose longer side has at most WIDTH pixels."""
    small, file = image.copy(), io.BytesIO()
    small.thumbnail((WIDTH, WIDTH))
    small.save(file, "JPEG", quality=80)
    return Picture("image/jpeg", file.getvalue(), *small.size)


class Thumbnails:
    """Pictures of a split's images: `thumbs/<id>` beside it, drawn for the demo world, or none."""

    def __init__(self, folder: Path, split: Split) -> None:
        self._thumbs, self._split = (folder / "thumbs").absolute(), split
        self._refused: set[str] = set()
        is_generated = labels_path(folder, split.name).exists()
        self._labels = read_labels(folder, split.name)["regions"] if is_generated else None

    def read(self, image: int) -> Picture | None:
        """Read the picture; None if it is missing or refused. The first refusal for each reason is logged."""
        thumbs = self._thumbs
        path = Path(os.path.normpath(thumbs / self._split.ids[image]))
        try:
            if not path.is_relative_to(thumbs) or not path.is_file():  # ids are data, and could be any path
                return self._drawn(image)
            if not path.resolve().is_relative_to(thumbs.resolve()):
                raise ValueError(_LINKED)
            return small_picture(path)
        except (OSError, ValueError) as error:  # the latter also for an invalid file name
            reason = getattr(error, "strerror", None) or str(error)
            if reason not in self._refused:
                self._refused.add(reason)
                logger.warning("%s %s (further pictures refused for this reason are not logged)", path, reason)
        return None

    def _drawn(self, image: int) -> Picture | None:
        if self._split.boxes is None or self._labels is None:
            return None
        parts = ['<rect width="100" height="100" fill="#bcc"/>']
        for (thing, shade, *_), box in zip(self._labels[image], np.asarray(self._split.boxes[image]), strict=True):
            if thing == UNLABELLED:
                continue
            left, top, right, bottom = (100 * float(corner) for corner in box)
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" rx="3" '
                f'fill="{SHADES[OBJECT_COLOURS[shade]]}" stroke="#555" stroke-width=".5"/>'
                f'<text x="{(left + right) / 2:.1f}" y="{(top + bottom) / 2 + 2:.1f}" font-size="6" '
                f'text-anchor="middle" font-family="sans-serif" stroke="#fff" stroke-width="1.5" '
                f'paint-order="stroke">{OBJECTS[thing]}</text>'
            )
        drawn = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100">{"".join(parts)}</svg>'
        return Picture("image/svg+xml", drawn.encode(), WIDTH, WIDTH)


def small_picture(path: Path) -> Picture:
    """Decode one picture at a time, so that many requests take the memory of one; refuse large ones by their header."""
    import_extra("PIL.Image", "report", "showing pictures")
    with DECODING:
        return thumbnail(decode(read_file(path, _SMALL), 2 * WIDTH, _SMALL).image)
