"""Judgements of pairs by each marker, in a file that `aoq screen --judgements` reads, and how markers agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from filelock import FileLock

from aoq.pipeline.browse.matches import Matches
from aoq.pipeline.columns import parse_csv
from aoq.pipeline.reading import reading
from aoq.pipeline.scratch import write_atomically, writing_in

Pair = tuple[int, int]
"""An image and a caption, by row."""
COLUMNS = pa.schema(
    {"image_id": pa.int64(), "caption_id": pa.int64(), "probability": pa.float64(), "marker": pa.string()}
)
REMEDY = f"it needs the columns {', '.join(COLUMNS.names)}"


@dataclass(frozen=True)
class Agreement:
    """Agreement of two markers on the pairs that both marked."""

    one: str
    other: str
    pairs: int
    same: float
    """The fraction of which both say the same."""
    kappa: float | None
    """Cohen's: 1 is agreement, 0 as much as chance gives; None where both say one thing of all."""


class Marks:
    """One marker's judgements, beside others'; true matches are kept in the file of known matches as well.

    `NAME.marks.csv` beside `NAME.csv` has a row a pair and marker: image_id, caption_id, probability (1 a true match, 0
    none) and marker.
    """

    def __init__(self, matches: Matches, marker: str) -> None:
        self.matches, self.marker = matches, marker
        self.path = matches.path.with_name(f"{matches.path.stem}.marks.csv")
        self._lock = FileLock(self.path.with_name(f".{self.path.name}.lock"))
        self._done: list[tuple[Pair, bool, bool | None, str]] = []
        self._stamp: tuple[int, int, int] | None = None
        self._said: dict[tuple[Pair, str], bool] = self._read()

    def of(self, image: int, caption: int) -> bool | None:
        """Return True for a pair in the file of matches, else this marker's judgement, None without one."""
        if (image, caption) in self.matches:
            return True
        return self._all().get(((image, caption), self.marker))

    def say(self, image: int, caption: int, is_match: bool | None, back: str) -> None:
        """Mark the pair, or take its mark back (None); `back` is the page to return to after an undo."""
        pair = (image, caption)
        before = pair in self.matches, self._all().get((pair, self.marker))
        self._write(pair, is_match is True, is_match)
        self._done.append((pair, *before, back))

    def undo(self) -> str | None:
        """Take the last mark of this server back; return the page it was made on, None without a mark."""
        if not self._done:
            return None
        pair, was_known, was_said, back = self._done.pop()
        self._write(pair, was_known, was_said)
        return back

    @property
    def can_undo(self) -> bool:
        return bool(self._done)

    def counts(self) -> tuple[int, int]:
        """Count the pairs that this marker calls a match, and those it calls none."""
        mine = [is_match for (_, marker), is_match in self._all().items() if marker == self.marker]
        return sum(mine), len(mine) - sum(mine)

    def agreements(self) -> list[Agreement]:
        """Compare every two markers with pairs in common."""
        by_marker: dict[str, dict[Pair, bool]] = {}
        for (pair, marker), is_match in sorted(self._all().items()):
            by_marker.setdefault(marker, {})[pair] = is_match
        names = list(by_marker)
        return [
            agreement(one, other, by_marker[one], by_marker[other])
            for place, one in enumerate(names)
            for other in names[place + 1 :]
            if by_marker[one].keys() & by_marker[other].keys()
        ]

    def _write(self, pair: Pair, is_known: bool, said: bool | None) -> None:
        """The matches last: what fails before has changed nothing that screens read."""
        with writing_in(self.path.parent), self._lock:
            rows = self._read()
            rows.pop((pair, self.marker), None)
            if said is not None:
                rows[pair, self.marker] = said
            if rows or self.path.exists():
                write_atomically(self.path, _content(rows))
        self.matches.mark(*pair, is_match=is_known)

    def _all(self) -> dict[tuple[Pair, str], bool]:
        """Read the file again if it changed."""
        there = self.path.stat() if self.path.exists() else None
        stamp = there and (there.st_ino, there.st_mtime_ns, there.st_size)
        if stamp != self._stamp:
            self._stamp, self._said = stamp, self._read()
        return self._said

    def _read(self) -> dict[tuple[Pair, str], bool]:
        if not self.path.exists():
            return {}
        with reading(self.path, "marks", REMEDY):
            rows = parse_csv(self.path, COLUMNS).to_pylist()
        return {((row["image_id"], row["caption_id"]), row["marker"]): row["probability"] >= 0.5 for row in rows}


def agreement(one: str, other: str, ours: Mapping[Pair, bool], theirs: Mapping[Pair, bool]) -> Agreement:
    """Cohen's kappa, (p - p_chance) / (1 - p_chance), on the pairs that both marked.

    >>> agreement("a", "b", {(0, 1): True, (0, 2): False}, {(0, 1): True, (0, 2): True, (5, 5): True}).same
    0.5
    """
    common = sorted(ours.keys() & theirs.keys())
    said = np.array([(ours[pair], theirs[pair]) for pair in common], dtype=float)
    same = float((said[:, 0] == said[:, 1]).mean())
    yes = said.mean(axis=0)
    chance = float(yes.prod() + (1 - yes).prod())
    return Agreement(one, other, len(common), same, None if chance == 1 else (same - chance) / (1 - chance))


def _content(rows: Mapping[tuple[Pair, str], bool]) -> bytes:
    columns = [
        [image for (image, _), _ in rows],
        [caption for (_, caption), _ in rows],
        [float(is_match) for is_match in rows.values()],
        [marker for _, marker in rows],
    ]
    file = pa.BufferOutputStream()
    csv.write_csv(pa.table(columns, schema=COLUMNS), file)
    return bytes(file.getvalue())
