"""Pairs that people mark as true matches, in the file of known matches that screens read."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock

from aoq.pipeline.scratch import write_atomically, writing_in
from aoq.pipeline.tables.files import PAIRS
from aoq.pipeline.tables.screens.matches import read_matches

CAPTION, IMAGE = PAIRS.names


class Matches:
    """Pairs of an image and a caption of the training split, by row; the file is made with the first of them.

    Changes by others, and their columns, are kept. A lock beside the file lets one process
    mark at a time.
    """

    def __init__(self, path: Path, images: int, captions: int) -> None:
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} does not exist; make it, or choose another --matches.")
        self.path = path.resolve()
        self._images, self._captions = images, captions
        self._lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))
        self._stamp: tuple[int, int, int] | None = None
        self._marked = self._read()

    def __len__(self) -> int:
        return len(self._pairs())

    def __contains__(self, pair: object) -> bool:
        """Return whether the image and the caption are marked."""
        return pair in self._pairs()

    def mark(self, image: int, caption: int, *, is_match: bool) -> None:
        """Add the pair to the file, or remove it; the file is written whole or not at all."""
        with writing_in(self.path.parent), self._lock:
            if ((image, caption) in self._read()) != is_match:
                write_atomically(self.path, EDITORS[self.path.suffix](self.path, caption, image, is_match))

    def _pairs(self) -> frozenset[tuple[int, int]]:
        """Read the pairs, again if the file has changed."""
        there = self.path.stat() if self.path.exists() else None
        stamp = there and (there.st_ino, there.st_mtime_ns, there.st_size)
        if stamp != self._stamp:
            self._stamp, self._marked = stamp, self._read()
        return self._marked

    def _read(self) -> frozenset[tuple[int, int]]:
        try:
            pairs = read_matches(self.path, self._images, self._captions)
        except FileNotFoundError:
            return frozenset()
        return frozenset((image, caption) for image, caption in pairs.tolist())


def _csv(path: Path, caption: int, image: int, is_match: bool) -> bytes:
    given = path.read_bytes().decode("utf-8-sig") if path.exists() else ",".join(PAIRS.names)
    rows = csv.DictReader(io.StringIO(given, newline=""))
    pairs: list[dict[str, Any]] = [row for row in rows if (int(row[CAPTION]), int(row[IMAGE])) != (caption, image)]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows.fieldnames or (), lineterminator="\n")
    writer.writeheader()
    writer.writerows([*pairs, {CAPTION: caption, IMAGE: image}] if is_match else pairs)
    return text.getvalue().encode()


def _parquet(path: Path, caption: int, image: int, is_match: bool) -> bytes:
    table = pq.read_table(path) if path.exists() else PAIRS.empty_table()
    if is_match:
        row = pa.table({CAPTION: [caption], IMAGE: [image]}).cast(table.select(PAIRS.names).schema)
        table = pa.concat_tables([table, row], promote_options="default")
    else:
        table = table.filter((pc.field(CAPTION) != caption) | (pc.field(IMAGE) != image))
    file = io.BytesIO()
    pq.write_table(table, file, write_page_checksum=True)
    return file.getvalue()


def _json(path: Path, caption: int, image: int, is_match: bool) -> bytes:
    images_of = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    name = next((key for key in images_of if int(key) == caption), str(caption))
    images = [one for one in images_of.get(name, []) if int(one) != image]
    images_of[name] = [*images, image] if is_match else images
    return json.dumps({key: images for key, images in images_of.items() if images}).encode()


EDITORS: dict[str, Callable[[Path, int, int, bool], bytes]] = {".csv": _csv, ".parquet": _parquet, ".json": _json}
"""Writers of a file with one pair added or removed, by extension; everything else in it stays."""
