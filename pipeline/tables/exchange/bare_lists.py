"""Write lists without texts and positives, a file for each direction, and import such lists as a table.

A TREC run has a line for each negative, `qid Q0 docid rank score tag`; rows are named by id, or by number.

The lists of AOQ's official code (2020) are `i2t_{name}.npy` and `t2i_{name}.npy`, int32 (anchors, h), hardest first.
Row n of i2t holds caption rows for image n, row n of t2i image rows for caption n. There are neither scores nor
padding: the code draws one of the first `offcandisize` entries (a fifth of them in t2i) of every row.

An import removes own positives. With vectors every pair is scored exactly and sorted in a table's order. Without them
the scores are those that came with the lists, or none (null), and the order is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Integer
from numpy.lib.format import open_memmap

from aoq.pipeline.reading import open_array
from aoq.pipeline.search.lists import NegativeLists, in_table_order
from aoq.pipeline.search.positives import Positives, group_offsets, unique_pairs
from aoq.pipeline.search.problem import DIRECTIONS, OPPOSITE, Direction, blocks
from aoq.pipeline.search.scores import exact_scores
from aoq.pipeline.tables.exchange.outgoing import Outgoing, is_listed
from aoq.pipeline.tables.files import write_manifest
from aoq.pipeline.tables.pairs import (
    SIDES,
    Known,
    group_positives,
    is_among,
    is_number,
    is_row_number,
    pair_keys,
    pairing_sha256,
    rows_by_id,
)
from aoq.pipeline.tables.writing import write_table

LARGEST_SCORE = float(np.finfo(np.float32).max)
BLOCK_LISTS = 1024
"""Lists converted at a time; official lists are 2000 long."""
_MOST_ROWS_PER_LIST = 100
"""Most images or captions per list of the runs, if only their numbers give the count."""


def write_run(outgoing: Outgoing, folder: Path) -> tuple[int, int]:
    """Write one direction's file; ranks start at 1, scores have enough digits to give the same float32 again."""
    queries, documents = outgoing.anchors.ids, outgoing.candidates.ids
    for name in (*queries, *documents):
        if name.split() != [name]:
            raise ValueError(f"{name!r} cannot be an id in a TREC run, whose fields are separated by spaces.")
    lines = left_out = 0
    folder.mkdir(exist_ok=True)
    with (folder / f"{outgoing.direction}.trec").open("w", encoding="utf-8") as file:
        for rows in outgoing.rows():
            for anchor, entries in zip(rows.anchors["row"].ravel(), rows.negatives, strict=True):
                listed = entries[is_listed(entries)]
                left_out += not len(listed)
                lines += len(listed)
                negatives = zip(listed["row"].tolist(), listed["score"].astype(str).tolist(), strict=True)
                for rank, (document, score) in enumerate(negatives, start=1):
                    file.write(f"{queries[anchor]} Q0 {documents[document]} {rank} {score} aoq\n")
    return lines, left_out


def write_official(outgoing: Outgoing, folder: Path) -> tuple[int, int]:
    """Write one direction's file, named after the folder; refuse a list that is too short to fill its row."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{outgoing.direction}_{folder.name}.npy"
    lists = open_memmap(path, mode="w+", dtype=np.int32, shape=(len(outgoing.anchors.ids), outgoing.depth))
    for rows in outgoing.rows():
        anchors, negatives = rows.anchors["row"].ravel(), rows.negatives["row"]
        if len(short := np.flatnonzero(negatives[:, -1] < 0)):
            count = int((negatives[short[0]] >= 0).sum())
            raise ValueError(
                f"{outgoing.direction}: anchor {anchors[short[0]]} has {count} negatives, but the official lists "
                f"have no padding; export at most that many (--num-negatives), or mine more than {outgoing.depth} and "
                "export those."
            )
        lists[anchors] = negatives
    lists.flush()
    return len(lists), 0


RowsById = Mapping[str, int] | None
"""The row of each id; None if ids are row numbers."""
LINE = np.dtype([("anchor", np.int32), ("candidate", np.int32), ("place", np.int64), ("score", np.float32)])
"""A line of a run, and its place in its anchor's list."""
GivenLists = tuple[str, Integer[np.ndarray, "anchors h"], Float32[np.ndarray, "anchors h"] | None]
"""The source of one direction's lists, their ids, padded with -1, and their scores, if any."""


def find_list_files(source: Path) -> dict[Direction, Path]:
    """Find the file of the images' lists, and the captions' file beside it."""
    files: dict[Direction, Path] = {"i2t": source, "t2i": source.with_name("t2i" + source.name.removeprefix("i2t"))}
    for path in files.values():
        if not path.is_file() or not source.name.startswith("i2t"):
            raise ValueError(
                f"{path} is not a file of lists; name the images' i2t_NAME.npy or i2t_NAME.trec, with the captions' "
                "t2i_NAME.npy or t2i_NAME.trec beside it (lists of one set cannot be imported)."
            )
    return files


def open_lists_alone(files: Mapping[Direction, Path], images: Known, captions: Known) -> dict[Direction, GivenLists]:
    """Open official `.npy` lists, or read TREC runs.

    If the number of a side's rows is unknown, it has as many as the runs name.
    """
    if files["i2t"].suffix == ".npy":
        return {direction: (str(path), _open_official(path), None) for direction, path in files.items()}
    known = {"images": images, "captions": captions}
    rows = {side: None if one.ids is None else rows_by_id(one.ids, one.noun) for side, one in known.items()}
    runs = {direction: _read_run(path, *(rows[side] for side in SIDES[direction])) for direction, path in files.items()}
    named = {
        side: 1 + max(int(run["anchor" if side == SIDES[one][0] else "candidate"].max()) for one, run in runs.items())
        for side in known
    }
    counts = {side: named[side] if one.count is None else one.count for side, one in known.items()}
    if (last := runs["t2i"]["anchor"].max()) >= counts["captions"]:
        raise ValueError(
            f"{files['t2i']} has a list for caption {last}, but there are captions 0 to {counts['captions'] - 1}."
        )
    lists = sum(int((run["place"] == 0).sum()) for run in runs.values())
    if max((named[side] for side, one in known.items() if one.count is None), default=0) > _MOST_ROWS_PER_LIST * lists:
        raise ValueError(
            f"the runs name image {counts['images'] - 1} and caption {counts['captions'] - 1}, and have {lists} lists: "
            "these are not row numbers; number rows from 0, or give --image-ids and --caption-ids."
        )
    opened: dict[Direction, GivenLists] = {}
    for direction, run in runs.items():
        shape, at = (counts[SIDES[direction][0]], run["place"].max() + 1), (run["anchor"], run["place"])
        ids, scores = np.full(shape, -1, np.int32), np.full(shape, np.nan, np.float32)
        ids[at], scores[at] = run["candidate"], run["score"]
        opened[direction] = str(files[direction]), ids, scores
    return opened


def _open_official(path: Path) -> Integer[np.ndarray, "anchors h"]:
    lists = open_array(path)
    if lists.ndim != 2 or 0 in lists.shape or not np.issubdtype(lists.dtype, np.integer):
        raise ValueError(
            f"{path} holds {lists.dtype} of shape {lists.shape}; official lists are integers of shape (anchors, h)."
        )
    return lists


def _read_run(path: Path, anchors: RowsById, candidates: RowsById) -> np.ndarray:
    """Read the lines of a run as LINEs; those of an anchor must be consecutive."""
    with path.open(encoding="utf-8", errors="replace") as file:
        lines = (_line(f"{path}:{line}", text, anchors, candidates) for line, text in enumerate(file, start=1))
        run = np.fromiter(lines, LINE)
    if not len(run):
        raise ValueError(f"{path} holds no line.")
    rises = (np.diff(run["place"]) * np.diff(run["score"]))[np.diff(run["anchor"]) == 0] > 0
    if len(rises) and rises.mean() > 0.5:
        raise ValueError(f"{path}: scores rise with the rank, as distances do; negate them, so that higher is closer.")
    starts = np.flatnonzero(np.diff(run["anchor"], prepend=-1))
    _, first = np.unique(run["anchor"][starts], return_index=True)
    if len(again := np.setdiff1d(np.arange(len(starts)), first)):
        raise ValueError(f"{path}:{starts[again[0]] + 1}: this query has earlier lines too; sort the run by query.")
    run["place"] = np.arange(len(run)) - np.repeat(starts, np.diff(starts, append=len(run)))
    return run


def _line(where: str, line: str, anchors: RowsById, candidates: RowsById) -> tuple[int, int, int, float]:
    fields = line.split()
    if len(fields) != 6:
        raise ValueError(f"{where}: {len(fields)} fields where a TREC run has 6: qid Q0 docid rank score tag.")
    if not is_number(fields[4]) or abs(score := float(fields[4])) > LARGEST_SCORE:
        raise ValueError(f"{where}: the score {fields[4]!r} is not a finite number, or too large for float32.")
    rank = int(fields[3]) if is_row_number(fields[3]) else 0
    return _id_row(fields[0], anchors, where), _id_row(fields[2], candidates, where), rank, score


def _id_row(name: str, rows: RowsById, where: str) -> int:
    if rows is not None:
        if name not in rows:
            raise ValueError(f"{where}: {name!r} is not among the {len(rows)} ids.")
        return rows[name]
    if not is_row_number(name):
        raise ValueError(
            f"{where}: {name!r} is not a row number; give --image-ids where images go by ids, and --caption-ids where "
            "captions do."
        )
    return int(name)


def import_lists(
    lists: Mapping[Direction, GivenLists],
    positives: Integer[np.ndarray, "*shape"],
    vectors: Mapping[str, Float32[np.ndarray, "_ D"]] | None,
    *,
    provenance: Mapping[str, Any],
    output: Path,
) -> dict[str, Any]:
    """Write the table to the new folder `output` and return its manifest.

    `positives` are rows (image, caption), or the image of each caption. If the provenance has no `dataset`, their hash
    names the data.
    """
    images, captions = (len(lists[direction][1]) for direction in DIRECTIONS)
    if vectors is not None and (sizes := (len(vectors["images"]), len(vectors["captions"]))) != (images, captions):
        raise ValueError(
            f"there are vectors of {sizes[0]} images and {sizes[1]} captions, but lists for {images} and {captions}."
        )
    pairs = unique_pairs(positives, images, captions)
    contents: dict[Direction, tuple[dict[str, Any], Any]] = {}
    counts: dict[Direction, dict[str, int]] = {}
    for direction in DIRECTIONS:
        _, ids, scores = lists[direction]
        both = None if vectors is None else [vectors[side] for side in SIDES[direction]]
        kind = "exact" if both else "none" if scores is None else "source"
        about = {"h": ids.shape[1], "search": "none", "guarantee": "imported", "scores": kind}
        own, others = group_positives(direction, pairs, len(ids)), len(lists[OPPOSITE[direction]][1])
        counts[direction] = {"own_positives_left_out": 0, "anchors_without_negatives": 0}
        contents[direction] = about, _cleaned(lists[direction], own, others, both, counts[direction])
    manifest = write_table(output, {"dataset": pairing_sha256(pairs, captions), **provenance}, contents, pairs)
    for direction, more in counts.items():
        manifest["directions"][direction] |= more
    write_manifest(output, manifest)
    return manifest


def _cleaned(
    lists: GivenLists,
    positives: Positives,
    candidates: int,
    vectors: Sequence[Float32[np.ndarray, "_ D"]] | None,
    counts: dict[str, int],
) -> Iterator[NegativeLists]:
    """Iterate over blocks of lists without own positives, and add to `counts`; `vectors` are those of both sides."""
    source, every_id, every_score = lists
    for start, stop in blocks(len(every_id), BLOCK_LISTS):
        ids, rows = np.asarray(every_id[start:stop]), np.arange(stop - start)
        if (outside := (ids < -1) | (ids >= candidates)).any():
            row, place = np.argwhere(outside)[0]
            raise ValueError(
                f"{source}: row {start + row} lists {ids[row, place]}, but there are candidates 0 to {candidates - 1}; "
                "the lists or the pairs belong to other data."
            )
        ordered = np.sort(ids, axis=1)
        if (twice := ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)).any():
            raise ValueError(f"{source}: row {start + int(twice.argmax())} lists a candidate twice.")
        ids, own = ids.astype(np.int32), positives.rows(rows + start)
        own_keys = pair_keys(np.repeat(rows, np.diff(own.offsets)), own.ids, candidates)
        is_own = (ids >= 0) & is_among(pair_keys(rows[:, None], ids, candidates), own_keys)
        ids[is_own] = -1
        scores, positive = np.full(ids.shape, np.nan, dtype=np.float32), np.full(len(ids), np.nan, dtype=np.float32)
        real = ids >= 0
        if vectors is not None:
            anchors, others = vectors[0][start:stop], vectors[1]
            scores[real] = exact_scores(anchors, others, group_offsets(real.sum(axis=1)), ids[real])
            positive = own.lowest(exact_scores(anchors, others, own.offsets, own.ids))
        elif every_score is not None:
            scores[real] = every_score[start:stop][real]
        if vectors is not None or every_score is not None:
            ids, scores = in_table_order(ids, scores)
        counts["own_positives_left_out"] += int(is_own.sum())
        counts["anchors_without_negatives"] += int((~real.any(axis=1)).sum())
        yield NegativeLists(ids, scores, positive).keep(ids >= 0)
