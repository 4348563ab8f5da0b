"""Images of a split through an extractor into growing arrays; a killed run goes on after its last whole block.

{split}_ims.npy           features of the images that could be read, in order; boxes and masks beside, if it makes them;
                          headers are written last
{split}.records           of each of them its place in the listing, sha256, width and height
{split}.progress.json     how far all are whole, and which images could not be read; written last of a block
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
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

from aoq.pipeline.orphans import die_with_parent
from aoq.pipeline.prepare.extractors.extractor import Extractor
from aoq.pipeline.prepare.extractors.preprocessing import Seen, stacked
from aoq.pipeline.prepare.images import decode, thumbnail
from aoq.pipeline.prepare.sources.listing import Images
from aoq.pipeline.reading import read_json
from aoq.pipeline.scratch import write_atomically

BLOCK = 512
"""Images that a kill may lose, about."""
HEADER = 128
RECORD = np.dtype([("place", "<i8"), ("sha256", "V32"), ("width", "<i4"), ("height", "<i4")])
THUMBNAIL = 200


class Progress(TypedDict):
    done: int
    kept: int
    broken: list[list[Any]]
    """Places in the listing, with reasons."""
    changed: dict[str, int]
    """How many images were animated, CMYK and so on."""


@dataclass(frozen=True)
class Loading:
    """How images are read ahead; nothing of it changes a result."""

    workers: int
    batch: int
    device: torch.device


class Read(NamedTuple):
    """An image as the encoder sees it, or why it cannot be read."""

    pixels: np.ndarray | None
    sha256: bytes = b""
    width: int = 0
    height: int = 0
    changes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Reader(Dataset[Read]):
    """Images of a listing, decoded; with a picture for people beside, below `thumbs` if there is such a folder."""

    images: Images
    rows: np.ndarray
    ids: list[str]
    preprocessing: Seen
    thumbs: Path | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> Read:
        row = int(self.rows[place])
        try:
            encoded = self.images.read(row)
            image, width, height, changes = decode(encoded, max(self.preprocessing.least, 2 * THUMBNAIL))
        except FileNotFoundError:
            return Read(None, problem="does not exist")
        except OSError as error:
            return Read(None, problem=f"cannot be read ({error.strerror or error})")
        except ValueError as error:
            return Read(None, problem=str(error))
        if self.thumbs is not None:
            _write_thumbnail(self.thumbs, self.ids[place], thumbnail(image, THUMBNAIL))
        return Read(self.preprocessing.pixels(image), sha256(encoded).digest(), width, height, changes)


def _write_thumbnail(thumbs: Path, name: str, picture: bytes) -> None:
    """Below `thumbs`, wherever the name would lead; a name that no file can have gets none."""
    path = Path(os.path.normpath(thumbs / name))
    if thumbs not in path.parents:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    except (FileExistsError, IsADirectoryError, NotADirectoryError, ValueError):
        return
    except OSError as error:
        if error.errno != 36:  # ENAMETOOLONG
            raise


Batch = tuple[list[Tensor], list[Read]]
"""The pixels of images that could be read, stacked, and what else was read."""


def _collated(batch: list[Read]) -> Batch:
    """Tensors travel through shared memory."""
    seen = stacked(read.pixels for read in batch if read.pixels is not None)
    return seen, [read._replace(pixels=None) for read in batch]


@dataclass
class Extraction:
    """One split: its arrays in `folder`, the rest in `work`."""

    folder: Path
    work: Path
    split: str
    extractor: Extractor
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(done=0, kept=0, broken=[], changed={})
        if self._progress_file.is_file():
            self.progress = read_json(self._progress_file, Progress)

    @property
    def arrays(self) -> dict[str, Path]:
        """The file of each of the extractor's columns."""
        return {name: self.folder / f"{self.split}_{name}.npy" for name in self.extractor.columns}

    @property
    def records(self) -> np.ndarray:
        """A record an image that could be read, memory-mapped."""
        kept = self.progress["kept"]
        return np.memmap(self._records_file, RECORD, "r", shape=(kept,)) if kept else np.empty(0, RECORD)

    @property
    def _records_file(self) -> Path:
        return self.work / f"{self.split}.records"

    @property
    def _progress_file(self) -> Path:
        return self.work / f"{self.split}.progress.json"

    def run(self, reader: Reader, loading: Loading) -> Iterator[tuple[int, float]]:
        """Go on where the last run was; yields how many images are done, and how many a second."""
        self._cut_to_whole_blocks()
        start, clock = self.progress["done"], time.monotonic()
        with ExitStack() as stack:
            arrays = {name: stack.enter_context(_appending(path)) for name, path in self.arrays.items()}
            records = stack.enter_context(_appending(self._records_file))
            saved = start
            for seen, batch in _batches(reader, start, loading):
                self._extract(seen, batch, arrays, loading.device)
                self._note(batch, records)
                done = self.progress["done"]
                if done - saved >= BLOCK:
                    self._save(*arrays.values(), records)
                    saved = done
                yield done, (done - start) / (time.monotonic() - clock)
            self._save(*arrays.values(), records)

    def finish(self) -> None:
        """Write the headers: from now on the arrays can be opened."""
        for name, path in self.arrays.items():
            column = self.extractor.columns[name]
            shape = self.progress["kept"], *column.shape
            with path.open("r+b") as file:
                about = {"descr": npy.dtype_to_descr(column.dtype), "fortran_order": False, "shape": shape}
                npy.write_array_header_1_0(file, about)
                assert file.tell() == HEADER  # numpy leaves room for any number of images
                os.fsync(file.fileno())

    def _extract(
        self, seen: list[Tensor], batch: list[Read], arrays: Mapping[str, BinaryIO], device: torch.device
    ) -> None:
        """Append what the extractor makes of the images that could be read."""
        sizes = np.array([(read.width, read.height) for read in batch if not read.problem], np.int64).reshape(-1, 2)
        start = 0
        for pixels in seen:
            widths, heights = sizes[start : start + len(pixels)].T
            for name, made in self.extractor.extract(pixels, widths, heights, device).items():
                arrays[name].write(np.ascontiguousarray(made).data)
            start += len(pixels)

    def _note(self, batch: list[Read], records: BinaryIO) -> None:
        """Records of a batch, whose order is that of the listing."""
        progress = self.progress
        places = range(progress["done"], progress["done"] + len(batch))
        whole = [(place, read) for place, read in zip(places, batch, strict=True) if not read.problem]
        rows = [(place, read.sha256, read.width, read.height) for place, read in whole]
        records.write(np.array(rows, RECORD).tobytes())
        progress["done"] += len(batch)
        progress["kept"] += len(whole)
        progress["broken"] += [[place, read.problem] for place, read in zip(places, batch, strict=True) if read.problem]
        changed = Counter(progress["changed"])
        changed.update(change for _, read in whole for change in read.changes)
        progress["changed"] = dict(changed)

    def _save(self, *files: BinaryIO) -> None:
        for file in files:
            file.flush()
            os.fsync(file.fileno())
        write_atomically(self._progress_file, json.dumps(self.progress).encode())

    def _cut_to_whole_blocks(self) -> None:
        """Drop what a killed run wrote after its last whole block."""
        kept = self.progress["kept"]
        columns = self.extractor.columns
        wholes = {path: HEADER + kept * columns[name].bytes for name, path in self.arrays.items()}
        for path, size in {**wholes, self._records_file: kept * RECORD.itemsize}.items():
            path.touch()
            if path.stat().st_size < size and kept:
                raise ValueError(f"{path} was cut short since the last run; remove {self.work.parent} and run again.")
            os.truncate(path, size)


def _appending(path: Path) -> BinaryIO:
    file = path.open("r+b")
    file.seek(0, os.SEEK_END)
    return file


def _begin_worker(_: int) -> None:
    """One that outlived a killed run would write pictures into what the next one makes."""
    die_with_parent()


def _batches(reader: Reader, start: int, loading: Loading) -> Iterator[Batch]:
    if start == len(reader):
        return iter(())
    return iter(
        DataLoader(
            reader,
            batch_size=loading.batch,
            sampler=range(start, len(reader)),
            num_workers=loading.workers,
            collate_fn=_collated,
            pin_memory=loading.device.type == "cuda",
            prefetch_factor=4 if loading.workers else None,
            worker_init_fn=_begin_worker,
        )
    )
