"""Audit of a negative table: checks of its content, its manifest and its certificates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from jaxtyping import Bool, Int64

from aoq.pipeline.columns import read_parquet
from aoq.pipeline.reading import parse_json, reading
from aoq.pipeline.search.positives import both_ways
from aoq.pipeline.search.problem import DIRECTIONS, OPPOSITE, Direction
from aoq.pipeline.tables.files import CERTIFICATES, MANIFEST, MINE_AGAIN, POSITIVES, search_facts
from aoq.pipeline.tables.pairs import Pairs, is_among, listed_keys, pair_keys
from aoq.pipeline.tables.table import SEARCH_FIELDS, NegativeTable, read_table
from aoq.pipeline.tables.writing import are_certified, count_figures, summarise_figures

FIELDS = {"direction", "h", "search", "guarantee", "anchors", "sha256"}
FIGURE_ROUNDING = 1e-4
"""Figures are stored with four decimals."""
Keys = Int64[np.ndarray, "anchors h"]
"""The number of each listed pair; padding is -1."""


def audit(given: NegativeTable | Path | str) -> list[str]:
    """Check a table in a folder, or one in memory, which has no files or certificates; return a line per problem.

    A table that cannot be read, such as one whose files do not match its hashes, raises ValueError or OSError.
    """
    problems: list[str] = []
    if isinstance(given, NegativeTable):
        table = given
    else:
        folder, table = Path(given), read_table(given)
        for direction in table.directions:
            about = search_facts(table.manifest, direction)
            if lacking := FIELDS - about.keys():
                raise ValueError(
                    f"{folder / MANIFEST} lacks {sorted(lacking)} for {direction}: it is damaged, or was written by an "
                    "older version; mine again."
                )
            problems += _check_manifest(folder, direction, table)
            if about["guarantee"] == "exact" or about.get("certified_share"):
                problems += _check_certificates(folder, direction, table)
    mined = [direction for direction in table.directions if table[direction].h]
    for direction in mined:
        problems += _check_lists(direction, table)
    if all(table[direction].negative_ids.max(initial=-1) < len(table[OPPOSITE[direction]]) for direction in mined):
        listed = {direction: _table_keys(table, direction) for direction in mined}
        if table.positives is not None:
            problems += _check_positives(table, table.positives, listed)
        if table.is_one_set:
            listed["t2i"] = _table_keys(table, "t2i")
        if len(listed) == len(DIRECTIONS):
            problems += _check_agreement(table, listed)
    return problems


def _check_lists(direction: Direction, table: NegativeTable) -> Iterator[str]:
    lists, candidates = table[direction], len(table[OPPOSITE[direction]])
    ids, scores = lists.negative_ids, lists.scores
    real: Bool[np.ndarray, "anchors h"] = ids >= 0
    finite: Bool[np.ndarray, "anchors h"] = np.isfinite(scores)
    ordered = np.sort(ids, axis=1)
    rises = scores[:, 1:] > scores[:, :-1]
    tied = (scores[:, 1:] == scores[:, :-1]) & (ids[:, 1:] < ids[:, :-1])
    no_scores = search_facts(table.manifest, direction).get("scores") == "none"
    checks = {
        "ids beyond the other side's rows, or below -1": (ids < -1) | (ids >= candidates),
        "real ids after padding (-1)": real[:, 1:] & ~real[:, :-1],
        "a score, although the manifest says that there are none": finite & no_scores,
        "real ids with scores that are not finite": (real > finite) & (not no_scores),
        "padding with a score": (finite > real) & (not no_scores),
        "a positive score that is infinite": np.isinf(lists.positive_score),
        "a listed id without a source, or padding with one": lists.sources is not None and (lists.sources > 0) != real,
        "the same id twice": (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0),
        "not in order (score falling, then id rising)": real[:, 1:] & real[:, :-1] & (rises | tied),
        "a row among its own negatives": table.is_one_set and ids == np.arange(len(ids))[:, None],
    }
    for message, wrong in checks.items():
        yield from _describe_rows(f"{direction}.parquet: {message}", np.asarray(wrong))


def _check_manifest(folder: Path, direction: Direction, table: NegativeTable) -> Iterator[str]:
    """Check that the footer and the manifest agree, and that the manifest describes the lists."""
    name, lists, about = f"{direction}.parquet", table[direction], search_facts(table.manifest, direction)
    with reading(folder / name, "a table's file"):
        footer = parse_json((pq.read_schema(folder / name).metadata or {}).get(b"aoq", b"{}"), dict)
    shared = {key: value for key, value in table.manifest.items() if key not in ("directions", "ids")}
    for key, value in {**shared, **{key: about.get(key) for key in ("direction", "h", *SEARCH_FIELDS)}}.items():
        if footer.get(key) != value:
            yield f"{name}: its footer says {key} = {footer.get(key)!r}, the manifest {value!r}"
    if (lists.h, len(lists)) != (about["h"], about["anchors"]):
        stated = f"the manifest says {about['anchors']} of {about['h']}"
        yield f"{name}: holds {len(lists)} lists of {lists.h}, {stated}"
    if len(lists):
        yield from _check_figures(direction, about, summarise_figures(count_figures(lists)))


def _check_figures(direction: Direction, about: Mapping[str, Any], actual: Mapping[str, float | None]) -> Iterator[str]:
    for key, value in actual.items():
        stated = about.get(key, value)  # older and imported tables lack some
        are_numbers = isinstance(stated, int | float) and value is not None
        if stated != value and not (are_numbers and abs(stated - value) < FIGURE_ROUNDING):
            yield f"{MANIFEST}: it says {key} = {stated!r} for {direction}, but the table gives {value!r}"


def _check_certificates(folder: Path, direction: Direction, table: NegativeTable) -> Iterator[str]:
    """Check that the certificates belong to the lists, and that exact lists are all certified."""
    name, about = f"{direction}.certificates.parquet", search_facts(table.manifest, direction)
    rows = read_parquet(folder / name, CERTIFICATES, remedy=MINE_AGAIN)
    if not np.array_equal(rows["anchor_id"].to_numpy(), np.arange(len(table[direction]))):
        yield f"{name}: its anchors are not those of the table"
        return
    last, own, bound = rows["last_score"].to_numpy(), table[direction].scores[:, -1], rows["bound"].to_numpy()
    differs = (last != own) & ~(np.isnan(last) & np.isnan(own))
    yield from _describe_rows(f"{name}: a last score that is not the table's", differs)
    is_certified = are_certified(last, bound)
    if about["guarantee"] == "exact":
        yield from _describe_rows(f"{name}: not certified: the last score does not clear the bound", ~is_certified)
    yield from _check_figures(direction, about, {"certified_share": float(is_certified.mean())})


def _table_keys(table: NegativeTable, direction: Direction) -> Keys:
    ids = table[direction].negative_ids
    return listed_keys(direction, np.arange(len(ids))[:, None], ids, len(table.t2i))


def _check_positives(table: NegativeTable, positives: Pairs, listed: dict[Direction, Keys]) -> Iterator[str]:
    """Check that the pairs' rows exist, that no list has a true pair, and that one set has each pair in both orders."""
    outside = (positives < 0).any(axis=1) | (positives >= [len(table.i2t), len(table.t2i)]).any(axis=1)
    if outside.any():
        yield from _describe_rows(f"{POSITIVES}: pairs with rows that the table does not have", outside)
        return
    own = np.sort(pair_keys(positives[:, 0], positives[:, 1], len(table.t2i)))
    for direction, keys in listed.items():
        yield from _describe_rows(f"{direction}.parquet: an own positive among the negatives", is_among(keys, own))
    if table.is_one_set:
        both = both_ways(positives)
        if len(np.setxor1d(own, pair_keys(both[:, 0], both[:, 1], len(table.t2i)))):
            yield f"{POSITIVES}: pairs in one order only, or of a row with itself"


def _check_agreement(table: NegativeTable, listed: dict[Direction, Keys]) -> Iterator[str]:
    """Check that both directions give a pair the same score, as far as their lists reach."""
    about = [search_facts(table.manifest, direction) for direction in table.directions]
    # Scores from elsewhere may differ, and a fused score belongs to one list.
    if any(one.get("scores", "exact") != "exact" or one.get("guarantee") == "fused" for one in about):
        return
    for direction in table.directions:
        keys, theirs = listed[direction], listed[OPPOSITE[direction]].ravel()
        lists, other = table[direction], table[OPPOSITE[direction]]
        order = np.argsort(theirs)
        place = order[np.minimum(np.searchsorted(theirs, keys, sorter=order), len(order) - 1)]
        there, real = theirs[place] == keys, keys >= 0
        differs = there & real & (other.scores.ravel()[place] != lists.scores)
        yield from _describe_rows(f"{direction}.parquet: a score that differs from the other direction's", differs)
        if all(one.get("guarantee") == "exact" for one in about):
            last = np.nan_to_num(other.scores[:, -1], nan=-np.inf)[lists.negative_ids]
            lacking, message = real & ~there & (lists.scores > last), "a pair that the other direction should list"
            yield from _describe_rows(f"{direction}.parquet: {message}, but does not", lacking)


def _describe_rows(message: str, wrong: Any) -> list[str]:
    """Name a problem with the number of its rows and the first of them, if there are any."""
    rows = np.flatnonzero(wrong.any(axis=1) if wrong.ndim == 2 else wrong)
    return [f"{message} ({len(rows)} rows, the first is {rows[0]})"] if len(rows) else []
