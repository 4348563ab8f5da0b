"""What is wrong with a negative table, as far as the table itself and what stands beside it can tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Bool, Float32, Int64

from aoq.pipeline.search.lists import NegativeLists
from aoq.pipeline.search.problem import DIRECTIONS, OTHER, Direction
from aoq.pipeline.tables.pairs import is_among, pair_keys
from aoq.pipeline.tables.table import (
    CERTIFICATES,
    MANIFEST,
    PAIRS,
    POSITIVES,
    ContentHash,
    NegativeTable,
    read_beside,
    read_table,
)

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


def audit(folder: Path) -> list[Finding]:
    """All that is wrong; what cannot be read at all is a ValueError or an OSError."""
    table = read_table(folder)
    for direction in DIRECTIONS:
        if lacking := SAID - table.manifest.get("directions", {}).get(direction, {}).keys():
            raise ValueError(
                f"{folder / MANIFEST} does not say {sorted(lacking)} of {direction}: it is damaged, or from before "
                "tables could be audited; mine again."
            )
    findings: list[Finding] = []
    for direction in DIRECTIONS:
        findings += _lists(direction, table[direction], len(table[OTHER[direction]]), _scores(table, direction))
        findings += _identity(folder, direction, table)
        if table.manifest["directions"][direction]["guarantee"] == "exact":
            findings += _certificates(folder, direction, table[direction])
    in_range = all(table[d].negative_ids.max() < len(table[OTHER[d]]) for d in DIRECTIONS)
    return [*findings, *_positives(folder, table), *_agreement(table)] if in_range else findings


def _scores(table: NegativeTable, direction: Direction) -> str:
    """What is mined has exact scores; what is imported may have the `source`'s, or `none`."""
    return str(table.manifest["directions"][direction].get("scores", "exact"))


def _lists(direction: Direction, lists: NegativeLists, candidates: int, scored: str) -> Iterator[Finding]:
    ids, scores = lists.negative_ids, lists.scores
    real: Bool[np.ndarray, "anchors h"] = ids >= 0
    finite: Bool[np.ndarray, "anchors h"] = np.isfinite(scores)
    found = _reporter(f"{direction}.parquet")
    yield from found("ids beyond the other side's rows, or below -1", (ids < -1) | (ids >= candidates))
    yield from found("real ids after padding (-1)", real[:, 1:] & ~real[:, :-1])
    if scored == "none":
        yield from found("a score, and the manifest says that there are none", finite)
    else:
        yield from found("real ids with scores that are not finite", real > finite)
        yield from found("padding with a score", finite > real)
    yield from found("a positive score that is infinite", np.isinf(lists.positive_scores))
    if lists.sources is not None:
        yield from found("a listed id without a source, or padding with one", (lists.sources > 0) != real)
    ordered = np.sort(ids, axis=1)
    yield from found("the same id twice", (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0))
    both = real[:, 1:] & real[:, :-1]
    rises = scores[:, 1:] > scores[:, :-1]
    tied = (scores[:, 1:] == scores[:, :-1]) & (ids[:, 1:] < ids[:, :-1])
    yield from found("not in order (score falling, then id rising)", both & (rises | tied))


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
    content = ContentHash()
    content.add(lists)
    if content.hexdigest() != about["sha256"]:
        yield Finding(name, "its lists are not those whose sha256 the manifest gives")


def _certificates(folder: Path, direction: Direction, lists: NegativeLists) -> Iterator[Finding]:
    """Of an exact table: every last score clears the bound of all that was not scored exactly."""
    name = f"{direction}.certificates.parquet"
    rows = read_beside(folder / name, CERTIFICATES)
    if not np.array_equal(rows["anchor_id"].to_numpy(), np.arange(len(lists))):
        yield Finding(name, "its anchors are not those of the table")
        return
    found = _reporter(name)
    last = rows["last_score"].to_numpy()
    yield from found("a last score that is not the table's", last != lists.scores[:, -1])
    yield from found("not certified: the last score does not clear the bound", ~(last > rows["bound"].to_numpy()))


def _positives(folder: Path, table: NegativeTable) -> Iterator[Finding]:
    rows = read_beside(folder / POSITIVES, PAIRS)
    captions, images = rows["caption_id"].to_numpy(), rows["image_id"].to_numpy()
    outside = (captions < 0) | (captions >= len(table.t2i)) | (images < 0) | (images >= len(table.i2t))
    if outside.any():
        yield Finding(POSITIVES, "pairs with rows that the table has not", int(outside.sum()), int(outside.argmax()))
        return
    own = np.sort(pair_keys(images, captions, len(table.t2i)))
    for direction in DIRECTIONS:
        anchors, keys, _ = _keys(direction, table)
        bad = np.zeros(len(table[direction]), dtype=np.bool_)
        bad[anchors[is_among(keys, own)]] = True
        yield from _reporter(f"{direction}.parquet")("an own positive among the negatives", bad)


def _agreement(table: NegativeTable) -> Iterator[Finding]:
    """What one direction says of a pair, the other says too, if its list goes that far.

    Not asked where scores came from elsewhere; fused scores are the list's own.
    """
    guarantees = [about["guarantee"] for about in table.manifest["directions"].values()]
    if any(_scores(table, direction) != "exact" for direction in DIRECTIONS) or "fused" in guarantees:
        return
    exact = all(guarantee == "exact" for guarantee in guarantees)
    listed = {direction: _keys(direction, table) for direction in DIRECTIONS}
    for direction in DIRECTIONS:
        (anchors, keys, scores), other = listed[direction], table[OTHER[direction]]
        _, other_keys, other_scores = listed[OTHER[direction]]
        if not len(keys) or not len(other_keys):
            continue
        order = np.argsort(other_keys)
        place = order[np.minimum(np.searchsorted(other_keys, keys, sorter=order), len(order) - 1)]
        there = other_keys[place] == keys
        found = _reporter(f"{direction}.parquet")
        bad = np.zeros(len(table[direction]), dtype=np.bool_)
        bad[anchors[there & (other_scores[place] != scores)]] = True
        yield from found("a score that the other direction gives otherwise", bad)
        if exact:
            image, caption = np.divmod(keys, len(table.t2i))
            last = np.nan_to_num(other.scores[:, -1], nan=-np.inf)[caption if direction == "i2t" else image]
            bad = np.zeros(len(table[direction]), dtype=np.bool_)
            bad[anchors[~there & (scores > last)]] = True
            yield from found("a pair that the other direction should list, and it does not", bad)


def _keys(
    direction: Direction, table: NegativeTable
) -> tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"], Float32[np.ndarray, " pairs"]]:
    """Of all listed pairs: the anchor, one number for the pair, the score."""
    lists = table[direction]
    anchors, places = np.nonzero(lists.negative_ids >= 0)
    ids = lists.negative_ids[anchors, places]
    images, captions = (anchors, ids) if direction == "i2t" else (ids, anchors)
    return anchors, pair_keys(images, captions, len(table.t2i)), lists.scores[anchors, places]


def _reporter(file: str) -> Callable[[str, Bool[np.ndarray, "*rows"]], list[Finding]]:
    def found(message: str, wrong: Bool[np.ndarray, "*rows"]) -> list[Finding]:
        rows = np.flatnonzero(wrong if wrong.ndim == 1 else wrong.any(axis=1))
        return [Finding(file, message, len(rows), int(rows[0]))] if len(rows) else []

    return found
