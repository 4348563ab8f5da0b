"""Pictures of the demo world's scenes, for models that read photographs: packed into `{split}_images.parquet`."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32

from aoq.pipeline.data.demo import read_labels
from aoq.pipeline.data.demo_scenes import OBJECT_COLOURS, OBJECTS, UNLABELLED
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.data.images import SHADES
from aoq.pipeline.extras import import_extra
from aoq.pipeline.prepare.photographs import GROUP_IMAGES, PACKED
from aoq.pipeline.reading import open_array
from aoq.pipeline.search.problem import blocks

_SIDE = 96
GROUND_SHADES = ("#6a4", "#dc8", "#eef", "#888", "#48a")
"""Colours of grass, sand, snow, road and water."""
CORNERS = len(OBJECTS) // 2
"""Half of the objects are polygons of 3, 4, 5, ... corners, the others stars with as many points."""
INNER = 0.4


def write_demo_pictures(folder: Path) -> None:
    """Draw each image of a generated world: a colour for its ground, a shape of its colour for each object."""
    pillow = import_extra("PIL.Image", "prepare", "pictures of the demo world")
    for split in ("train", "dev"):
        labels, boxes = read_labels(folder, split)["regions"], open_array(folder / f"{split}_boxes.npy")
        ids = read_lines(folder / f"{split}_ids.txt")
        with pq.ParquetWriter(folder / f"{split}_images.parquet", PACKED) as writer:
            for start, stop in blocks(len(ids), GROUP_IMAGES):
                drawn = [_draw(pillow, labels[row], boxes[row]) for row in range(start, stop)]
                sha256 = [hashlib.sha256(content).hexdigest() for content in drawn]
                sides, paths = [_SIDE] * len(drawn), [None] * len(drawn)
                writer.write_table(pa.table([ids[start:stop], paths, sha256, sides, sides, drawn], schema=PACKED))


def _draw(pillow: Any, labels: list[list[int]], boxes: Float32[np.ndarray, "regions 4"]) -> bytes:
    from PIL import ImageDraw

    ground = next(label[4] for label in labels if label[4] != UNLABELLED)
    image, file = pillow.new("RGB", (_SIDE, _SIDE), GROUND_SHADES[ground]), io.BytesIO()
    pen = ImageDraw.Draw(image)
    for (thing, shade, *_), box in zip(labels, boxes, strict=True):
        if thing != UNLABELLED:
            pen.polygon(_corners(thing, box), SHADES[OBJECT_COLOURS[shade]], "#555")
    image.save(file, "PNG")
    return file.getvalue()


def _corners(thing: int, box: Float32[np.ndarray, " 4"]) -> list[tuple[float, float]]:
    corners, is_star = 3 + thing % CORNERS, thing >= CORNERS
    turns = np.arange(corners * (1 + is_star)) / (corners * (1 + is_star)) * 2 * np.pi
    radii = np.where(np.arange(len(turns)) % 2 == 0, 1.0, INNER) if is_star else np.ones(len(turns))
    middle, half = (box[:2] + box[2:]) / 2 * _SIDE, (box[2:] - box[:2]) / 2 * _SIDE
    points = middle + half * np.stack([np.sin(turns), -np.cos(turns)], axis=1) * radii[:, None]
    return [(float(x), float(y)) for x, y in points]
