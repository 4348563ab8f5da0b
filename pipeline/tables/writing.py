"""Write a table: lists of both directions, certificates if a search gave any, positives, ids and the manifest."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.engine import in_parallel
from aoq.pipeline.files import replace_output, scratch_beside
from aoq.pipeline.search.lists import NegativeLists, from_arrow, to_arrow
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.card import describe_collapse, write_card
from aoq.pipeline.tables.files import (
    CERTIFICATES,
    FORMAT_VERSION,
    MANIFEST,
    PAIRS,
    POSITIVES,
    ContentHash,
    count_rows,
    id_columns,
    ids_sha256,
    nouns_of,
    read_manifest,
    write_manifest,
)
from aoq.pipeline.tables.pairs import Pairs, pairs_sha256, require_one_each, rows_by_id

logger = logging.getLogger(__name__)

GROUP_ROWS = 4096
COLLAPSED, MOST_COLLAPSED = 1e-6, 0.5
"""Relative difference below which scores count as equal, and the fraction of such anchors that calls for a warning."""


@contextmanager
def made_whole(output: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a path in a scratch folder; the files written there become `output` when the block ends.

    With `overwrite` an existing table or view is replaced.
    """
    with scratch_beside(output) as scratch:
        if output.exists() and not overwrite:
            raise ValueError(f"{output} is there already; remove it or choose another name.")
        if output.exists() and not (output / MANIFEST).is_file():
            raise ValueError(f"{output} is there already and is no table; choose another name.")
        yield scratch / output.name
        replace_output(scratch / output.name, output)


def write_table(
    output: Path,
    provenance: Mapping[str, Any],
    made: Mapping[Direction, tuple[Mapping[str, Any], Any]],
    positives: Pairs,
    *,
    write: Callable[[Path, Mapping[str, Any], Any], dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Write the files, the manifest and a README last, and return the manifest.

    `made` has each direction's fields of the manifest and its lists from the first anchor on. `write` (by default
    `write_lists`) writes a direction's file and returns its figures. Directions are written in threads of their own.
    """
    output.mkdir(parents=True, exist_ok=True)
    pairs = write_positives(output, positives)
    header = {"format_version": FORMAT_VERSION, **provenance, "positives_sha256": pairs}
    about = {direction: {"direction": direction, **fields} for direction, (fields, _) in made.items()}
    figures: dict[str, dict[str, Any]] = {}

    def write_some(start: int, stop: int) -> None:
        for direction in list(made)[start:stop]:
            path, footer = output / f"{direction}.parquet", {**header, **about[direction]}
            figures[direction] = (write or write_lists)(path, footer, made[direction][1])

    in_parallel(write_some, len(made), parts=1)
    manifest = {**header, "directions": {direction: {**about[direction], **figures[direction]} for direction in made}}
    write_manifest(output, manifest)
    write_card(output)
    return manifest


def write_positives(folder: Path, positives: Pairs) -> str:
    """Write the positive pairs, by caption, then by image; return their sha256."""
    pairs = positives[np.lexsort(positives.T)]
    columns = pa.table({"caption_id": pairs[:, 1], "image_id": pairs[:, 0]}, schema=PAIRS)
    pq.write_table(columns, folder / POSITIVES, compression="zstd", write_page_checksum=True)
    return pairs_sha256(pairs)


def write_lists(path: Path, footer: Mapping[str, Any], parts: Iterable[NegativeLists]) -> dict[str, Any]:
    """Write a direction's lists; return their hash and the main figures of their hardness.

    The `bound` of lists that a search certified goes into certificates beside the table: bounds depend on the
    search, and the table does not.
    """
    content, rows, positives, certified, collapsed, sums = ContentHash(), 0, 0, 0, 0, np.zeros(4)
    certificates: list[pa.Table] = []
    with list_writer(path, footer) as writer:
        for group in _row_groups(parts):
            writer.write_table(group.select(writer.schema.names).cast(writer.schema))
            lists = from_arrow(group)
            scores, positive = lists.scores, lists.positive_score
            if lists.bound is not None:
                columns = {"anchor_id": group["anchor_id"], "last_score": scores[:, -1], "bound": lists.bound}
                certificates.append(pa.table(columns, schema=CERTIFICATES))
                certified += int(((scores[:, -1] > lists.bound) | (lists.bound == -np.inf)).sum())
            content.add(lists)
            rows += len(lists)
            collapsed += _count_collapsed(lists)
            positives += int(np.isfinite(positive).sum())
            summed = (scores[:, 0], scores[:, -1], positive, scores[:, 0] > positive)
            sums += [np.nansum(column, dtype=np.float64) for column in summed]
    if certificates:
        beside = path.with_suffix(".certificates.parquet")
        pq.write_table(pa.concat_tables(certificates), beside, compression="zstd", row_group_size=GROUP_ROWS)
    first, last, lowest, above = sums.tolist()
    has_collapsed = collapsed > MOST_COLLAPSED * rows
    if has_collapsed:
        logger.warning("%s: %s", path.stem, describe_collapse(collapsed / rows))
    return {
        "anchors": rows,
        "sha256": content.hexdigest(),
        **({"certified_share": certified / rows} if certificates else {}),
        **({"collapsed_share": round(collapsed / rows, 4)} if has_collapsed else {}),
        "first_score_mean": round(first / rows, 4),
        "last_score_mean": round(last / rows, 4),
        "positive_score_mean": round(lowest / positives, 4) if positives else None,
        "above_positive_share": round(above / rows, 4),
    }


def list_writer(path: Path, footer: Mapping[str, Any]) -> pq.ParquetWriter:
    """Open a writer with page checksums, as a flipped byte reads as another id; no dictionary, as values differ."""
    ids, scores, sources = (pa.list_(kind, footer["h"]) for kind in (pa.int32(), pa.float32(), pa.uint8()))
    columns = {"anchor_id": pa.int32(), "negative_ids": ids, "scores": scores, "positive_score": pa.float32()}
    columns |= {"sources": sources} if "sources" in footer else {}
    return pq.ParquetWriter(
        path,
        pa.schema(columns, metadata={"aoq": json.dumps(footer, sort_keys=True)}),
        compression="zstd",
        use_dictionary=False,
        use_byte_stream_split=["scores.list.element"],
        write_page_checksum=True,
    )


def _row_groups(parts: Iterable[NegativeLists]) -> Iterator[pa.Table]:
    """Regroup all rows into groups of one size, so that the same lists make the same file whatever the parts."""
    waiting, first = [], 0
    for lists in parts:
        waiting.append(to_arrow(lists, first))
        first += len(lists)
        while sum(map(len, waiting)) > GROUP_ROWS:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, GROUP_ROWS).combine_chunks()
            waiting = [whole.slice(GROUP_ROWS)]
    yield pa.concat_tables(waiting).combine_chunks()


def _count_collapsed(lists: NegativeLists) -> int:
    """Count the anchors whose listed and positive scores, two at least, all lie within 1e-6 of the highest."""
    scores = np.column_stack([lists.scores, lists.positive_score]).astype(np.float64)
    highest, lowest = (choose.reduce(scores, axis=1) for choose in (np.fmax, np.fmin))
    return int(((highest - lowest <= COLLAPSED * np.abs(highest)) & (np.isfinite(scores).sum(axis=1) > 1)).sum())


def write_ids(table: Path, ids: Mapping[str, Sequence[str]]) -> None:
    """Write the ids of some sides into an existing table, and their hashes into its manifest.

    Raises:
        ValueError: unless each row has one id of its own.
    """
    if not ids:
        return
    manifest = read_manifest(table)
    counts, nouns, columns = count_rows(table, manifest), nouns_of(manifest), id_columns(manifest)
    for side, names in ids.items():
        require_one_each(names, f"{nouns[side]} ids", counts[side])
        rows_by_id(names, nouns[side])
        file, schema = columns[side]
        column = pa.table([pa.array(names, pa.string())], schema=schema)
        pq.write_table(column, table / file, compression="zstd", write_page_checksum=True)
    hashes = {side: ids_sha256(names) for side, names in ids.items()}
    write_manifest(table, {**manifest, "ids": {**manifest.get("ids", {}), **hashes}})
    write_card(table)
