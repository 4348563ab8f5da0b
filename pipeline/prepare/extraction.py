"""Extract features of a split's images into growing arrays; a killed run continues after its last whole block.

{split}_ims.npy           features of the readable images, in order; boxes and masks beside, if it makes them;
                          headers are written last
{split}.records           place in the listing, sha256, width and height of each of them
{split}.progress.json     the number of complete images, and the unreadable ones; written last of a block
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor
from typing_extensions import TypedDict

from aoq.pipeline.prepare.extractors.extractor import Extractor
from aoq.pipeline.prepare.reader import Loading, Read, Reader, batches
from aoq.pipeline.reading import read_json
from aoq.pipeline.scratch import write_atomically

BLOCK = 512
"""Approximate number of images that a kill may lose."""
HEADER = 128
RECORD = np.dtype([("place", "<i8"), ("sha256", "V32"), ("width", "<i4"), ("height", "<i4")])

Append = Callable[[Mapping[str, np.ndarray], Sequence[Read]], None]
"""Takes the next images: features of the readable ones, and records of all."""


class Progress(TypedDict):
    done: int
    kept: int
    broken: list[list[Any]]
    """Places in the listing, with reasons."""
    changed: dict[str, int]
    """Number of images that were animated, CMYK and so on."""


def extracted(
    extractor: Extractor, seen: Sequence[Tensor], batch: Sequence[Read], device: torch.device
) -> dict[str, np.ndarray]:
    """Extract features of a batch's readable images, whose pixels are `seen`."""
    sizes = np.array([(read.width, read.height) for read in batch if not read.problem], np.int64).reshape(-1, 2)
    parts, start = [], 0
    for pixels in seen:
        widths, heights = sizes[start : start + len(pixels)].T
        parts.append(extractor.extract(pixels, widths, heights, device))
        start += len(pixels)
    return {name: np.concatenate([part[name] for part in parts]) for name in extractor.columns} if parts else {}


@dataclass
class Extraction:
    """One split: its arrays in `folder`, thumbnails in `thumbs` if there are any; the rest in `work`."""

    folder: Path
    work: Path
    split: str
    extractor: Extractor
    ids: Sequence[str]
    thumbs: Path | None
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(done=0, kept=0, broken=[], changed={})
        if self._progress_file.is_file():
            self.progress = read_json(self._progress_file, Progress)

    @property
    def arrays(self) -> dict[str, Path]:
        """File of each of the extractor's columns."""
        return {name: self.folder / f"{self.split}_{name}.npy" for name in self.extractor.columns}

    @property
    def records(self) -> np.ndarray:
        """Records of the readable images, memory-mapped."""
        kept = self.progress["kept"]
        return np.memmap(self._records_file, RECORD, "r", shape=(kept,)) if kept else np.empty(0, RECORD)

    @property
    def _records_file(self) -> Path:
        return self.work / f"{self.split}.records"

    @property
    def _progress_file(self) -> Path:
        return self.work / f"{self.split}.progress.json"

    def run(self, reader: Reader, loading: Loading) -> Iterator[int]:
        """Continue after the last run; yield the number of finished images."""
        with self.appending() as append:
            for seen, batch in batches(reader, self.progress["done"], loading):
                append(extracted(self.extractor, seen, batch, loading.device), batch)
                yield self.progress["done"]

    @contextmanager
    def appending(self) -> Iterator[Append]:
        """Open the files after the last run's end; they are saved after each block and at the end."""
        self._cut_to_whole_blocks()
        with ExitStack() as stack:
            arrays = {name: stack.enter_context(_appending(path)) for name, path in self.arrays.items()}
            records = stack.enter_context(_appending(self._records_file))
            saved = self.progress["done"]

            def append(made: Mapping[str, np.ndarray], batch: Sequence[Read]) -> None:
                nonlocal saved
                for name, rows in made.items():
                    arrays[name].write(np.ascontiguousarray(rows).data)
                self._note(batch, records)
                if self.progress["done"] - saved >= BLOCK:
                    self._save(*arrays.values(), records)
                    saved = self.progress["done"]

            yield append
            self._save(*arrays.values(), records)

    def finish(self) -> None:
        """Write the headers; from now on the arrays can be opened."""
        for name, path in self.arrays.items():
            column = self.extractor.columns[name]
            shape = self.progress["kept"], *column.shape
            with path.open("r+b") as file:
                about = {"descr": npy.dtype_to_descr(column.dtype), "fortran_order": False, "shape": shape}
                npy.write_array_header_1_0(file, about)
                assert file.tell() == HEADER  # numpy leaves room for any number of images
                os.fsync(file.fileno())

    def _note(self, batch: Sequence[Read], records: BinaryIO) -> None:
        """Write records and thumbnails of a batch, in the order of the listing."""
        progress = self.progress
        places = range(progress["done"], progress["done"] + len(batch))
        whole = [(place, read) for place, read in zip(places, batch, strict=True) if not read.problem]
        rows = [(place, read.sha256, read.width, read.height) for place, read in whole]
        records.write(np.array(rows, RECORD).tobytes())
        if self.thumbs is not None:
            for place, read in whole:
                _write_thumbnail(self.thumbs, self.ids[place], read.thumbnail)
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
        """Drop anything that a killed run wrote after its last whole block."""
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


def has_thumbnail(thumbs: Path, name: str) -> bool:
    """Return whether an id leads below `thumbs`: no absolute path, and none that leads up."""
    return thumbs in Path(os.path.normpath(thumbs / name)).parents


def _write_thumbnail(thumbs: Path, name: str, picture: bytes) -> None:
    """Write below `thumbs`, wherever the name would lead; an invalid file name gets no thumbnail."""
    if not has_thumbnail(thumbs, name):
        return
    path = Path(os.path.normpath(thumbs / name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture)
    except (FileExistsError, IsADirectoryError, NotADirectoryError, ValueError):
        return
    except OSError as error:
        if error.errno != 36:  # ENAMETOOLONG
            raise
