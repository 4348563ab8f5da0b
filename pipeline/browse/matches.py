"""The pairs that people mark as true matches, in the file of known matches that screens read."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.browse.match_files import EDITORS
from aoq.pipeline.tables.screens.matches import read_matches

Stamp = tuple[int, int, int]


class Matches:
    """Pairs of an image and a caption of the training split, by row; the file is made with the first of them.

    What others write into the file meanwhile is seen and kept, and so are columns of theirs. A lock beside the file has
    one process mark at a time.
    """

    def __init__(self, path: Path, images: int, captions: int) -> None:
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} does not exist; make it, or choose another --matches.")
        self.path = path.resolve()
        self._images, self._captions = images, captions
        self._lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))
        self._seen: tuple[Stamp | None, frozenset[tuple[int, int]]] = (None, self._read())

    def __len__(self) -> int:
        return len(self._pairs())

    def __contains__(self, pair: object) -> bool:
        """Whether the image and the caption are marked."""
        return pair in self._pairs()

    def mark(self, image: int, caption: int, *, is_match: bool) -> None:
        """Put the pair into the file, or take it out; the file is written whole or not at all."""
        with self._lock:
            if ((image, caption) in self._read()) != is_match:
                write_atomically(self.path, EDITORS[self.path.suffix](self.path, caption, image, is_match))

    def _pairs(self) -> frozenset[tuple[int, int]]:
        """Read again where the file is another than before."""
        stamp, pairs = self._seen
        now = self._stamp()
        if now != stamp:
            pairs = self._read()
            self._seen = (now, pairs)
        return pairs

    def _stamp(self) -> Stamp | None:
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return None
        return there.st_ino, there.st_mtime_ns, there.st_size

    def _read(self) -> frozenset[tuple[int, int]]:
        try:
            pairs = read_matches(self.path, self._images, self._captions)
        except FileNotFoundError:
            return frozenset()
        return frozenset((image, caption) for image, caption in pairs.tolist())
