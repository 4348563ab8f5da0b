"""Thumbnails of images, for reports and pages."""

from __future__ import annotations

import base64
import io
import logging
import os
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aoq.pipeline.data.demo import labels_path, read_labels
from aoq.pipeline.data.demo_scenes import OBJECT_COLOURS, OBJECTS, UNLABELLED
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.images import decode
from aoq.pipeline.extras import import_extra
from aoq.pipeline.reading import read_file

logger = logging.getLogger(__name__)

WIDTH = 200
_MOST_BYTES = 50_000_000
_MOST_PIXELS = 50_000_000
_LINKED = "is a link out of thumbs/, which is not followed; copy the picture, or make thumbs itself a link"
DECODING = threading.Lock()
SHADES = {"red": "#d33", "blue": "#36c", "green": "#2a2", "yellow": "#ec0", "black": "#222", "white": "#fff"}
SHADES |= {"pink": "#f8a", "brown": "#853"}


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
        except ValueError as error:  # also for an invalid file name
            self._refuse(path, str(error))
        except OSError as error:
            self._refuse(path, error.strerror or str(error))
        return None

    def _refuse(self, path: Path, reason: str) -> None:
        if reason not in self._refused:
            self._refused.add(reason)
            logger.warning("%s %s (further pictures refused for this reason are not logged)", path, reason)

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
        picture, file = decode(read_file(path, _MOST_BYTES), 2 * WIDTH, _MOST_PIXELS).image, io.BytesIO()
        picture.thumbnail((WIDTH, WIDTH))
        picture.save(file, "JPEG", quality=72)
    return Picture("image/jpeg", file.getvalue(), *picture.size)
