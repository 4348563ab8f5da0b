"""What is wrong with a negative table, as far as the table itself and what stands beside it can tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Bool, Float32, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, OTHER, Direction
from aoq.pipeline.tables.files import CERTIFICATES, MANIFEST, POSITIVES, content_sha256, read_beside, said_of
from aoq.pipeline.tables.pairs import Pairs, is_among, listed_keys, pair_keys
from aoq.pipeline.tables.table import NegativeTable, read_table

SAID = {"direction", "h", "search", "guarantee", "anchors", "sha256"}


@dataclass(frozen=True)
class Finding:
    """A check, how many rows fail it, and the first."""

    file: str
    message: str
    rows: int = 1
    first: int | None = None

    def __str__(self) -> str:
        where = "" if self.first is None else f" ({self.rows} rows, the first is {self.first})"
        return f"{self.file}: {self.message}{where}"


def audit(given: NegativeTable | Path | str) -> list[Finding]:
    """Check a table in a folder, or one in memory without files and certificates, and list what is wrong.

    What cannot be read at all is a ValueError or an OSError.
    """
    table = given if isinstance(given, NegativeTable) else read_table(given)
    findings: list[Finding] = []
    if not isinstance(given, NegativeTable):
        folder = Path(given)
        for direction in DIRECTIONS:
            if lacking := SAID - said_of(table.manifest, direction).keys():
                raise ValueError(
                    f"{folder / MANIFEST} does not say {sorted(lacking)} of {direction}: it is damaged, or from before "
                    "tables could be audited; mine again."
                )
            findings += _identity(folder, direction, table)
            if said_of(table.manifest, direction)["guarantee"] == "exact":
                findings += _certificates(folder, direction, table[direction])
    mined = [direction for direction in DIRECTIONS if table[direction].h]
    for direction in mined:
        findings += _lists(direction, table)
    if all(table[direction].negative_ids.max() < len(table[OTHER[direction]]) for direction in mined):
        listed = {direction: _Listed(table, direction) for direction in mined}
        if table.positives is not None:
            findings += _positives(table, table.positives, listed)
        if len(mined) == len(DIRECTIONS):
            findings += _agreement(table, listed)
    return findings


def _scores(table: NegativeTable, direction: Direction) -> str:
    """What is mined has exact scores; what is imported may have the `source`'s, or `none`."""
    return str(said_of(table.manifest, direction).get("scores", "exact"))


def _lists(direction: Direction, table: NegativeTable) -> Iterator[Finding]:
    lists, candidates = table[direction], len(table[OTHER[direction]])
    ids, scores = lists.negative_ids, lists.scores
    real: Bool[np.ndarray, "anchors h"] = ids >= 0
    finite: Bool[np.ndarray, "anchors h"] = np.isfinite(scores)
    ordered = np.sort(ids, axis=1)
    rises = scores[:, 1:] > scores[:, :-1]
    tied = (scores[:, 1:] == scores[:, :-1]) & (ids[:, 1:] < ids[:, :-1])
    no_scores = _scores(table, direction) == "none"
    checks = {
        "ids beyond the other side's rows, or below -1": (ids < -1) | (ids >= candidates),
        "real ids after padding (-1)": real[:, 1:] & ~real[:, :-1],
        "a score, and the manifest says that there are none": finite & no_scores,
        "real ids with scores that are not finite": (real > finite) & (not no_scores),
        "padding with a score": (finite > real) & (not no_scores),
        "a positive score that is infinite": np.isinf(lists.positive_score),
        "a listed id without a source, or padding with one": lists.sources is not None and (lists.sources > 0) != real,
        "the same id twice": (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0),
        "not in order (score falling, then id rising)": real[:, 1:] & real[:, :-1] & (rises | tied),
    }
    for message, wrong in checks.items():
        yield from _found(f"{direction}.parquet", message, np.asarray(wrong))


def _identity(folder: Path, direction: Direction, table: NegativeTable) -> Iterator[Finding]:
    """The footer, the manifest and the content tell of one table."""
    name, lists, about = f"{direction}.parquet", table[direction], table.manifest["directions"][direction]
    footer = json.loads((pq.read_schema(folder / name).metadata or {}).get(b"aoq", b"{}"))
    shared = {key: value for key, value in table.manifest.items() if key != "directions"}
    for key, value in {**shared, **{key: about[key] for key in ("direction", "h", "search", "guarantee")}}.items():
        if footer.get(key) != value:
            yield Finding(name, f"its footer says {key} = {footer.get(key)!r}, the manifest {value!r}")
    if lists.h != about["h"] or len(lists) != about["anchors"]:
        yield Finding(
            name, f"holds {len(lists)} lists of {lists.h}, the manifest says {about['anchors']} of {about['h']}"
        )
    if content_sha256(lists) != about["sha256"]:
        yield Finding(name, "its lists are not those whose sha256 the manifest gives")


def _certificates(folder: Path, direction: Direction, lists: NegativeLists) -> Iterator[Finding]:
    """Check that every last score of an exact table clears the bound of all that was not scored exactly."""
    name = f"{direction}.certificates.parquet"
    rows = read_beside(folder / name, CERTIFICATES)
    if not np.array_equal(rows["anchor_id"].to_numpy(), np.arange(len(lists))):
        yield Finding(name, "its anchors are not those of the table")
        return
    last = rows["last_score"].to_numpy()
    yield from _found(name, "a last score that is not the table's", last != lists.scores[:, -1])
    uncertain = ~(last > rows["bound"].to_numpy())
    yield from _found(name, "not certified: the last score does not clear the bound", uncertain)


class _Listed:
    """All listed pairs of a direction: the anchor, one number for the pair, the score."""

    def __init__(self, table: NegativeTable, direction: Direction) -> None:
        lists = table[direction]
        self.anchors, places = np.nonzero(lists.negative_ids >= 0)
        ids = lists.negative_ids[self.anchors, places]
        self.keys: Int64[np.ndarray, " pairs"] = listed_keys(direction, self.anchors, ids, len(table.t2i))
        self.scores: Float32[np.ndarray, " pairs"] = lists.scores[self.anchors, places]
        self._file, self._count = f"{direction}.parquet", len(lists)

    def found(self, message: str, wrong: Bool[np.ndarray, " pairs"]) -> list[Finding]:
        return _found(self._file, message, np.bincount(self.anchors[wrong], minlength=self._count) > 0)


def _positives(table: NegativeTable, positives: Pairs, listed: dict[Direction, _Listed]) -> Iterator[Finding]:
    outside = (positives < 0).any(axis=1) | (positives >= [len(table.i2t), len(table.t2i)]).any(axis=1)
    if outside.any():
        yield from _found(POSITIVES, "pairs with rows that the table has not", outside)
        return
    own = np.sort(pair_keys(positives[:, 0], positives[:, 1], len(table.t2i)))
    for pairs in listed.values():
        yield from pairs.found("an own positive among the negatives", is_among(pairs.keys, own))


def _agreement(table: NegativeTable, listed: dict[Direction, _Listed]) -> Iterator[Finding]:
    """What one direction says of a pair, the other says too, if its list goes that far.

    Not asked where scores came from elsewhere; fused scores are the list's own.
    """
    guarantees = [said_of(table.manifest, direction).get("guarantee") for direction in DIRECTIONS]
    if any(_scores(table, direction) != "exact" for direction in DIRECTIONS) or "fused" in guarantees:
        return
    for direction, pairs in listed.items():
        theirs, other = listed[OTHER[direction]], table[OTHER[direction]]
        if not len(pairs.keys) or not len(theirs.keys):
            continue
        order = np.argsort(theirs.keys)
        place = order[np.minimum(np.searchsorted(theirs.keys, pairs.keys, sorter=order), len(order) - 1)]
        there = theirs.keys[place] == pairs.keys
        unlike: Bool[np.ndarray, " pairs"] = there & (theirs.scores[place] != pairs.scores)
        yield from pairs.found("a score that the other direction gives otherwise", unlike)
        if all(guarantee == "exact" for guarantee in guarantees):
            image, caption = np.divmod(pairs.keys, len(table.t2i))
            last = np.nan_to_num(other.scores[:, -1], nan=-np.inf)[caption if direction == "i2t" else image]
            lacking = ~there & (pairs.scores > last)
            yield from pairs.found("a pair that the other direction should list, and it does not", lacking)


def _found(file: str, message: str, wrong: Any) -> list[Finding]:
    rows = np.flatnonzero(wrong.any(axis=1) if wrong.ndim == 2 else wrong)
    return [Finding(file, message, len(rows), int(rows[0]))] if len(rows) else []
