"""Judgements of pairs: true matches in the file that screens read, and all marks of each marker beside it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from filelock import FileLock

from aoq.pipeline.columns import find_separator, parse_csv
from aoq.pipeline.files import write_atomically, writing_in
from aoq.pipeline.reading import reading
from aoq.pipeline.tables.files import PAIRS
from aoq.pipeline.tables.screens.judgements import read_matches

CAPTION, IMAGE = PAIRS.names
_MARK_COLUMNS = pa.schema(
    [(IMAGE, pa.int64()), (CAPTION, pa.int64()), ("probability", pa.float64()), ("marker", pa.string())]
)

Pair = tuple[int, int]
"""An image and a caption, by row."""
_Content = TypeVar("_Content")


class SharedFile(Generic[_Content]):
    """A file that several servers may write, one at a time; it is read again after any of them has written."""

    def __init__(self, path: Path, read: Callable[[Path], _Content]) -> None:
        self.path, self._read = path, read
        self._lock = FileLock(path.with_name(f".{path.name}.lock"))
        self._stamp, self._content = self._stat(), read(path)

    @property
    def content(self) -> _Content:
        if (stamp := self._stat()) != self._stamp:
            self._stamp, self._content = stamp, self._read(self.path)
        return self._content

    def change(self, changed: Callable[[_Content], bytes | None]) -> None:
        """Replace the file's content by what `changed` makes of it; None leaves the file as it is."""
        with writing_in(self.path.parent), self._lock:
            if (content := changed(self._read(self.path))) is not None:
                write_atomically(self.path, content)

    def _stat(self) -> tuple[int, int, int] | None:
        there = self.path.stat() if self.path.exists() else None
        return there and (there.st_ino, there.st_mtime_ns, there.st_size)


class Marks:
    """One marker's judgements, beside those of others.

    `known`, the file of pairs known to match, is created with the first of them, and keeps what others write into it.
    `NAME.marks.csv` beside `NAME.csv` has one row per pair and marker: image_id, caption_id, probability (1 for a true
    match, else 0) and marker. `aoq screen --judgements` reads it.
    """

    def __init__(self, path: Path, images: int, captions: int, marker: str) -> None:
        if not path.parent.is_dir():
            raise FileNotFoundError(f"{path.parent} does not exist; make it, or choose another --matches.")

        def read_known(file: Path) -> frozenset[Pair]:
            try:
                pairs = read_matches(file, images, captions)
            except FileNotFoundError:
                return frozenset()
            return frozenset((image, caption) for image, caption in pairs.tolist())

        path = path.resolve()
        self.known, self.marker = SharedFile(path, read_known), marker
        self.judged = SharedFile(path.with_name(f"{path.stem}.marks.csv"), _read_marks)
        self.undoable: list[tuple[Pair, bool, bool | None, str]] = []

    def judgement(self, image: int, caption: int) -> bool | None:
        """Return this marker's judgement, or None; True for a known match that no marker has judged."""
        pair = (image, caption)
        if by := self.judged.content.get(pair):
            return by.get(self.marker)
        return pair in self.known.content or None

    def mark(self, image: int, caption: int, is_match: bool | None, back: str) -> None:
        """Mark the pair, or remove its mark (None); `back` is the page to return to after an undo."""
        pair = (image, caption)
        before = pair in self.known.content, self.judged.content.get(pair, {}).get(self.marker)
        self._write(pair, False, is_match)
        self.undoable.append((pair, *before, back))

    def undo(self) -> str | None:
        """Undo the last mark of this server; return the page it was made on, or None if there is no mark."""
        if not self.undoable:
            return None
        pair, was_known, judgement, back = self.undoable.pop()
        self._write(pair, was_known, judgement)
        return back

    def counts(self) -> tuple[int, int]:
        mine = [by[self.marker] for by in self.judged.content.values() if self.marker in by]
        return sum(mine), len(mine) - sum(mine)

    def agreements(self) -> list[tuple[str, str, int, float, float | None]]:
        """Compare each two markers that share pairs: how many they share, and how far they agree (`agreement_on`)."""
        by_marker: dict[str, dict[Pair, bool]] = {}
        for marker, pair, is_match in sorted(
            (m, pair, yes) for pair, by in self.judged.content.items() for m, yes in by.items()
        ):
            by_marker.setdefault(marker, {})[pair] = is_match
        compared = []
        for (one, ours), (other, theirs) in combinations(by_marker.items(), 2):
            if common := [(ours[pair], theirs[pair]) for pair in ours.keys() & theirs.keys()]:
                compared.append((one, other, len(common), *agreement_on(common)))
        return compared

    def _write(self, pair: Pair, is_known: bool, judgement: bool | None) -> None:
        """Write a judgement, or remove it (None). Markers say whether the pair is known; if none does, `is_known`."""

        def marked(rows: dict[Pair, dict[str, bool]]) -> bytes | None:
            nonlocal is_known
            by = rows.setdefault(pair, {})
            by.pop(self.marker, None)
            if judgement is not None:
                by[self.marker] = judgement
            is_known = any(by.values()) if by else is_known
            values = [(*one, float(yes), marker) for one, by in rows.items() for marker, yes in by.items()]
            if not values and not self.judged.path.exists():
                return None
            names = _MARK_COLUMNS.names
            return _csv_content(names, [dict(zip(names, row, strict=True)) for row in values])

        def edited(pairs: frozenset[Pair]) -> bytes | None:
            path = self.known.path
            return None if (pair in pairs) == is_known else EDITORS[path.suffix](path, *pair, is_known)

        self.judged.change(marked)
        self.known.change(edited)  # last, so that an error above has changed nothing that screens read


def _read_marks(path: Path) -> dict[Pair, dict[str, bool]]:
    """Read the judgements of each pair by marker."""
    if not path.exists():
        return {}
    with reading(path, "marks", f"it needs the columns {', '.join(_MARK_COLUMNS.names)}"):
        rows = parse_csv(path, _MARK_COLUMNS).to_pylist()
    marks: dict[Pair, dict[str, bool]] = {}
    for row in rows:
        marks.setdefault((row[IMAGE], row[CAPTION]), {})[row["marker"]] = row["probability"] >= 0.5
    return marks


def agreement_on(marks: Sequence[tuple[bool, bool]]) -> tuple[float, float | None]:
    """Compute the fraction of equal marks, and Cohen's kappa: (p - p_chance) / (1 - p_chance).

    Kappa is 1 for full agreement, 0 for chance, and None if both give the same answer to every pair.

    >>> agreement_on([(True, True), (True, False), (False, False), (False, False)])
    (0.75, 0.5)
    """
    same, yes = float(np.mean([ours == theirs for ours, theirs in marks])), np.mean(marks, axis=0)
    chance = float(yes.prod() + (1 - yes).prod())
    return same, None if chance == 1 else (same - chance) / (1 - chance)


def _edit_csv(path: Path, image: int, caption: int, is_match: bool) -> bytes:
    text = path.read_bytes().decode("utf-8-sig") if path.exists() else ",".join(PAIRS.names)
    separator = find_separator(text.partition("\n")[0])
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator)
    pairs: list[dict[str, Any]] = [row for row in rows if (float(row[IMAGE]), float(row[CAPTION])) != (image, caption)]
    pairs += [{CAPTION: caption, IMAGE: image}] if is_match else []
    return _csv_content(rows.fieldnames or (), pairs, separator)


def _csv_content(names: Sequence[str], rows: Sequence[Mapping[str, Any]], separator: str = ",") -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, names, delimiter=separator, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _edit_parquet(path: Path, image: int, caption: int, is_match: bool) -> bytes:
    table = pq.read_table(path) if path.exists() else PAIRS.empty_table()
    if is_match:
        row = pa.table({CAPTION: [caption], IMAGE: [image]}).cast(table.select(PAIRS.names).schema)
        table = pa.concat_tables([table, row], promote_options="default")
    else:
        table = table.filter((pc.field(CAPTION) != caption) | (pc.field(IMAGE) != image))
    file = io.BytesIO()
    pq.write_table(table, file, write_page_checksum=True)
    return file.getvalue()


def _edit_json(path: Path, image: int, caption: int, is_match: bool) -> bytes:
    images_of = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    name = next((key for key in images_of if int(key) == caption), str(caption))
    images = [one for one in images_of.get(name, []) if int(one) != image]
    images_of[name] = [*images, image] if is_match else images
    return json.dumps({key: images for key, images in images_of.items() if images}).encode()


EDITORS = {".csv": _edit_csv, ".parquet": _edit_parquet, ".json": _edit_json}
"""By extension: return the file with one pair added or removed, and everything else as it is."""
