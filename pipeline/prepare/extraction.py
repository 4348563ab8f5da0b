"""Read images ahead and extract them into growing arrays; a killed run continues after its last whole block.

{split}_ims.npy           features of the readable images, in order; boxes and masks beside it, if the extractor makes
                          them; the headers are written last
{split}.records           place in the listing, sha256, width and height of each readable image
{split}.progress.json     the number of finished images, and the unreadable ones; written last of a block
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from typing_extensions import TypedDict

from aoq.models.towers.preprocessing import Seen, stacked
from aoq.pipeline.data.images import WIDTH, decode, thumbnail
from aoq.pipeline.engine import die_with_parent, products_in
from aoq.pipeline.files import write_atomically
from aoq.pipeline.prepare.extractor import Arrays, Extractor
from aoq.pipeline.prepare.sources.images import EncodedImages
from aoq.pipeline.prepare.sources.records import Listing
from aoq.pipeline.reading import read_json


class ReadImage(NamedTuple):
    """An image as the encoder sees it, or the reason why it cannot be read."""

    pixels: np.ndarray | None
    sha256: bytes = b""
    width: int = 0
    height: int = 0
    problem: str = ""
    thumbnail: bytes = b""


@dataclass(frozen=True)
class ImageReader(Dataset[ReadImage]):
    """Decoded images of a source, with thumbnails on request."""

    images: EncodedImages
    count: int
    preprocessing: Seen
    has_thumbnails: bool

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> ReadImage:
        try:
            encoded = self.images.read(place)
            image, width, height = decode(encoded, max(self.preprocessing.least, 2 * WIDTH))
        except FileNotFoundError:
            return ReadImage(None, problem="does not exist")
        except OSError as error:
            return ReadImage(None, problem=f"cannot be read ({error.strerror or error})")
        except ValueError as error:
            return ReadImage(None, problem=str(error))
        small = thumbnail(image).content if self.has_thumbnails else b""
        pixels = self.preprocessing.pixels(image)
        return ReadImage(pixels, sha256(encoded).digest(), width, height, thumbnail=small)


@dataclass(frozen=True)
class Extracting:
    """An extractor on its device, and how it is fed; neither the batch nor the workers change a result."""

    extractor: Extractor
    device: torch.device
    batch: int
    workers: int

    def batches(self, reader: ImageReader, start: int) -> Iterator[tuple[Arrays, list[ReadImage]]]:
        """Extract all images from the place `start` on, in order: the arrays of each batch, and its images."""
        if start == len(reader):
            return
        loader = DataLoader(
            reader,
            batch_size=self.batch,
            sampler=range(start, len(reader)),
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=4 if self.workers else None,
            # A worker that outlived a killed run would go on reading.
            worker_init_fn=lambda _: die_with_parent(),
        )
        for pixels, batch in loader:
            sizes = np.array([(image.width, image.height) for image in batch if not image.problem], np.int64)
            parts, done = [], 0
            for part in pixels:
                widths, heights = sizes[done : done + len(part)].T
                with products_in("float32"):
                    parts.append(self.extractor.extract(part, widths, heights, self.device))
                done += len(part)
            yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}, batch


def _collate(batch: list[ReadImage]) -> tuple[list[Tensor], list[ReadImage]]:
    """Stack the pixels of readable images in the worker: tensors travel through shared memory."""
    pixels = stacked(image.pixels for image in batch if image.pixels is not None)
    return pixels, [image._replace(pixels=None) for image in batch]


BLOCK_IMAGES = 512
"""Approximate number of images that a kill may lose."""
HEADER = 128
NO_FILE_NAME = (None, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Errors of ids that cannot be file names; None is that of an id with a null character."""
RECORD = np.dtype([("place", "<i8"), ("sha256", "V32"), ("width", "<i4"), ("height", "<i4")])


class Extracted(TypedDict):
    """The progress of a split."""

    done: int
    kept: int
    broken: list[list[Any]]
    """Places in the listing, with reasons."""


@dataclass
class Extraction:
    """One split: its arrays in `folder`, thumbnails in `thumbs` if that is given, and everything else in `work`."""

    folder: Path
    work: Path
    split: str
    listing: Listing
    extractor: Extractor
    thumbs: Path | None
    progress: Extracted = field(init=False)

    def __post_init__(self) -> None:
        self._progress_file = self.work / f"{self.split}.progress.json"
        self.progress = Extracted(done=0, kept=0, broken=[])
        if self._progress_file.is_file():
            self.progress = read_json(self._progress_file, Extracted)
        # Path of each growing file, the bytes before its first image, and the type of an image's part.
        self._files = {"records": (self.work / f"{self.split}.records", 0, RECORD)}
        for name, column in self.extractor.columns.items():
            self._files[name] = self.folder / f"{self.split}_{name}.npy", HEADER, column

    @property
    def reader(self) -> ImageReader:
        images, count = self.listing.images, len(self.listing)
        return ImageReader(images, count, self.extractor.preprocessing, self.thumbs is not None)

    @property
    def records(self) -> np.ndarray:
        """Records of the readable images, memory-mapped."""
        return np.memmap(self._files["records"][0], RECORD, "r", shape=(self.progress["kept"],))

    @contextmanager
    def appending(self) -> Iterator[Callable[[Arrays, Sequence[ReadImage]], None]]:
        """Open the files after the last run's last whole block; yield a function that appends the next images' arrays.

        The files are saved after each block and at the end.
        """
        count = self.progress["kept"]
        for path, start, kind in self._files.values():
            path.touch()
            if path.stat().st_size < start + count * kind.itemsize and count:
                raise ValueError(f"{path} was cut short since the last run; remove {self.work.parent} and run again.")
            os.truncate(path, start + count * kind.itemsize)
        with ExitStack() as stack:
            files = {name: stack.enter_context(path.open("ab")) for name, (path, _, _) in self._files.items()}
            saved = self.progress["done"]

            def append(arrays: Arrays, batch: Sequence[ReadImage]) -> None:
                nonlocal saved
                for name, rows in {**arrays, "records": self._count(batch)}.items():
                    files[name].write(np.ascontiguousarray(rows).data)
                if self.progress["done"] - saved >= BLOCK_IMAGES:
                    self._save(*files.values())
                    saved = self.progress["done"]

            yield append
            self._save(*files.values())

    def finish(self) -> None:
        """Write the headers; only then can the arrays be opened."""
        for name, column in self.extractor.columns.items():
            with self._files[name][0].open("r+b") as file:
                shape = self.progress["kept"], *column.shape
                header = {"descr": npy.dtype_to_descr(column.base), "fortran_order": False, "shape": shape}
                npy.write_array_header_1_0(file, header)
                assert file.tell() == HEADER  # numpy leaves room for any number of images
                os.fsync(file.fileno())

    def _count(self, batch: Sequence[ReadImage]) -> np.ndarray:
        """Count a batch, write its thumbnails, and return its records, in the order of the listing."""
        progress, records = self.progress, []
        for place, image in enumerate(batch, start=progress["done"]):
            if image.problem:
                progress["broken"].append([place, image.problem])
                continue
            records.append((place, image.sha256, image.width, image.height))
            name = self.listing.ids[place].as_py()
            if self.thumbs is not None and has_thumbnail(self.thumbs, name):
                path = Path(os.path.normpath(self.thumbs / name))
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(image.thumbnail)
                except (OSError, ValueError) as error:
                    if getattr(error, "errno", None) not in NO_FILE_NAME:
                        raise
        progress["done"] += len(batch)
        progress["kept"] += len(records)
        return np.array(records, RECORD)

    def _save(self, *files: BinaryIO) -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        write_atomically(self._progress_file, json.dumps(self.progress).encode())


def has_thumbnail(thumbs: Path, name: str) -> bool:
    """Return whether an id is a path below `thumbs`: not absolute, and not out of it by `..`."""
    return thumbs in Path(os.path.normpath(thumbs / name)).parents
