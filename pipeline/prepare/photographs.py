"""`{split}_images.parquet` of a prepared folder: where its photographs are, or their bytes; they must be unchanged.

The demo world's scenes can be drawn as such pictures, for models that read photographs.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Float32

from aoq.pipeline.columns import open_parquet
from aoq.pipeline.data.demo import read_labels
from aoq.pipeline.data.demo_scenes import OBJECT_COLOURS, OBJECTS, UNLABELLED
from aoq.pipeline.data.files import read_lines
from aoq.pipeline.data.folder import Split
from aoq.pipeline.data.images import DECODED_FORMATS, SHADES, decode
from aoq.pipeline.extras import import_extra
from aoq.pipeline.files import digest
from aoq.pipeline.prepare.sources.images import EncodedImages, ImageFiles, ParquetImages
from aoq.pipeline.reading import open_array
from aoq.pipeline.search.problem import blocks

if TYPE_CHECKING:
    from PIL.Image import Image

    from aoq.models.towers.preprocessing import Preprocessing
    from aoq.pipeline.data.pixels import PhotographPixels

PHOTOGRAPHS = pa.schema(
    {"id": pa.string(), "path": pa.string(), "sha256": pa.string(), "width": pa.int32(), "height": pa.int32()}
)
PACKED = PHOTOGRAPHS.append(pa.field("bytes", pa.binary()))
GROUP_IMAGES = 16
"""Packed images that are read together: a training reads them in random order."""
LISTED_ROWS = 4096
_SIDE = 96
GROUND_SHADES = ("#6a4", "#dc8", "#eef", "#888", "#48a")
"""Colours of grass, sand, snow, road and water."""
CORNERS = len(OBJECTS) // 2
"""Half of the objects are polygons of 3, 4, 5, ... corners, the others stars with as many points."""
INNER = 0.4


def write_photographs(path: Path, ids: pa.Array, images: EncodedImages, described: np.ndarray, *, pack: bool) -> None:
    """Write each image's path, with the sha256, width and height that are `described`; and its bytes, to pack it."""
    schema = PACKED if pack else PHOTOGRAPHS
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start, stop in blocks(len(ids), GROUP_IMAGES if pack else LISTED_ROWS):
            rows = range(start, stop)
            columns = {
                "id": ids.slice(start, stop - start),
                "path": [images.path(row) for row in rows],
                "sha256": [bytes(value).hex() for value in described["sha256"][start:stop]],
                "width": described["width"][start:stop],
                "height": described["height"][start:stop],
            }
            if pack:
                columns["bytes"] = [images.read(row) for row in rows]
            writer.write_table(pa.table(columns, schema=schema))


@dataclass(frozen=True)
class Photographs:
    """Photographs of a split in order, unchanged since the folder was prepared."""

    images: EncodedImages
    sha256: Sequence[str]

    def read(self, row: int) -> bytes:
        try:
            content = self.images.read(row)
            if hashlib.sha256(content).hexdigest() != self.sha256[row]:
                raise ValueError("was changed since the folder was prepared")
        except (OSError, ValueError) as error:
            raise self._refusal(row, error) from None
        return content

    def decode(self, row: int, least: int = 0) -> Image:
        """Read and decode the photograph, down to `least` pixels a side (`aoq.pipeline.data.images.decode`)."""
        content = self.read(row)
        try:
            return decode(content, least).image
        except ValueError as error:
            raise self._refusal(row, error) from None

    def _refusal(self, row: int, reason: Exception) -> ValueError:
        return ValueError(f"{self.images.describe(row)}: {reason}; prepare the folder again.")


def photographs_fingerprint(folder: Path, split: str) -> str:
    """Fingerprint the contents of a split's photographs in order, wherever they lie."""
    return digest(_read_list(folder, split)[1])


def open_photographs(folder: Path, split: str, images: int) -> Photographs:
    """Open the photographs of a split, one for each of its images."""
    path = folder / f"{split}_images.parquet"
    paths, sha256, is_packed = _read_list(folder, split)
    if len(paths) != images:
        raise ValueError(f"{path} lists {len(paths)} photographs, but the split has {images} images; prepare it again.")
    if is_packed:
        return Photographs(ParquetImages([str(path)], "bytes", ""), sha256)
    files = [name for name in paths if name is not None]
    if len(files) < len(paths):
        raise ValueError(f"{path} names no file of image {paths.index(None)}; prepare it again with --pack.")
    return Photographs(ImageFiles(files), sha256)


def open_pixels(
    folder: Path, split: Split, preprocessing: Preprocessing, images: int | None = None
) -> PhotographPixels:
    """Open the photographs of a split, or the first ones of the `images` that its folder lists."""
    from aoq.pipeline.data.pixels import PhotographPixels, may_be_flipped  # late: it loads torch

    import_extra("PIL.Image", "prepare", "an image tower")
    decode = open_photographs(folder, split.name, images or split.image_count).decode
    return PhotographPixels(decode, preprocessing, may_be_flipped(split.captions, split.image_of, split.image_count))


def _read_list(folder: Path, split: str) -> tuple[list[str | None], list[str], bool]:
    """Read file and content hash of each photograph, and whether they are packed."""
    path = folder / f"{split}_images.parquet"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no {path.name}, which says where its photographs are; `aoq prepare SOURCE FOLDER --pack` "
            "makes such a folder."
        )
    columns = pa.schema([PHOTOGRAPHS.field(name) for name in ("path", "sha256")])
    with open_parquet(path, columns, nullable=["path"], remedy="prepare the folder again") as file:
        return *file.read().to_pydict().values(), "bytes" in file.file.schema_arrow.names


def photograph_files(folder: Path, split: str, images: int, unpacked: Path | None = None) -> Sequence[str] | None:
    """Return the file of each photograph, if the prepared folder names them.

    With `unpacked`, a new folder, packed ones are written there and others checked; without it, no file is read.
    """
    if not (folder / f"{split}_images.parquet").is_file():
        return None
    photographs = open_photographs(folder, split, images)
    if isinstance(photographs.images, ImageFiles):
        if unpacked is not None:
            with ThreadPoolExecutor() as pool:
                deque(pool.map(photographs.read, range(images)), maxlen=0)
        return photographs.images.files
    if unpacked is None:
        return None
    unpacked.mkdir()
    pillow, paths = import_extra("PIL.Image", "prepare", "reading images"), []
    for row in range(images):
        content = photographs.read(row)
        with pillow.open(io.BytesIO(content), formats=DECODED_FORMATS) as opened:
            paths.append(unpacked / f"{row}.{opened.format.lower()}")
        paths[-1].write_bytes(content)
    return [*map(str, paths)]


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
