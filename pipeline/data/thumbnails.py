"""Small pictures of images, for pages that people look at."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aoq.pipeline.data.demo import labels_path
from aoq.pipeline.data.demo_scenes import COLOURS, NONE, OBJECTS
from aoq.pipeline.data.folder import Split
from aoq.pipeline.extras import import_extra

WIDTH = 200
SHADES = {"red": "#d33", "blue": "#36c", "green": "#2a2", "yellow": "#ec0", "black": "#222", "white": "#fff"}
SHADES |= {"pink": "#f8a", "brown": "#853"}


class Picture(NamedTuple):
    """A file's content and its media type."""

    media_type: str
    content: bytes

    @property
    def uri(self) -> str:
        """An address that is the picture itself."""
        return f"data:{self.media_type};base64,{base64.b64encode(self.content).decode()}"


class Thumbnails:
    """Pictures of a split's images: `thumbs/<id>` beside it, drawn for the demo world, or none."""

    def __init__(self, folder: Path, split: Split) -> None:
        self._folder, self._split = folder, split
        labels = labels_path(folder, split.name)
        self._labels = json.loads(labels.read_text(encoding="utf-8"))["regions"] if labels.is_file() else None

    def __getitem__(self, image: int) -> str | None:
        """An address that is the picture; None where there is none or it cannot be read."""
        picture = self.read(image)
        return picture and picture.uri

    def read(self, image: int) -> Picture | None:
        """The picture as a file."""
        thumbs = (self._folder / "thumbs").resolve()
        try:
            path = (thumbs / self._split.ids[image]).resolve()
            if path.is_relative_to(thumbs) and path.is_file():  # an id is data, and may be any path
                return _small(path)
        except (OSError, ValueError):  # or none: too long, or with a NUL
            return None
        return self._drawn(image)

    def _drawn(self, image: int) -> Picture | None:
        if self._split.boxes is None or self._labels is None:
            return None
        parts = ['<rect width="100" height="100" fill="#bcc"/>']
        for (thing, shade, *_), box in zip(self._labels[image], np.asarray(self._split.boxes[image]), strict=True):
            if thing == NONE:
                continue
            left, top, right, bottom = (100 * float(corner) for corner in box)
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" rx="3" '
                f'fill="{SHADES[COLOURS[shade]]}" stroke="#555" stroke-width=".5"/><text x="{(left + right) / 2:.1f}" '
                f'y="{(top + bottom) / 2 + 2:.1f}" font-size="6" text-anchor="middle" font-family="sans-serif" '
                f'stroke="#fff" stroke-width="1.5" paint-order="stroke">{OBJECTS[thing]}</text>'
            )
        drawn = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 100">{"".join(parts)}</svg>'
        return Picture("image/svg+xml", drawn.encode())


def _small(path: Path) -> Picture | None:
    pillow = import_extra("PIL.Image", "report", "showing pictures")
    try:
        with pillow.open(path) as opened:
            picture = opened.convert("RGB")
            picture.thumbnail((WIDTH, WIDTH))
    except (OSError, pillow.DecompressionBombError):
        return None
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=72)
    return Picture("image/jpeg", file.getvalue())
