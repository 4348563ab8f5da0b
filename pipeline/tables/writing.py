"""Write a table: lists of both directions, certificates if a search gave any, positives, ids and the manifest."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Float32, Float64

from aoq.pipeline.engine import in_parallel
from aoq.pipeline.files import replace_output, scratch_beside
from aoq.pipeline.search.lists import NegativeLists, from_arrow, to_arrow
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables import files
from aoq.pipeline.tables.card import describe_collapse, write_card
from aoq.pipeline.tables.pairs import Pairs, pairs_sha256, require_one_each, rows_by_id

logger = logging.getLogger(__name__)

GROUP_ROWS = 4096
COLLAPSED, MOST_COLLAPSED = 1e-6, 0.5
"""Relative difference below which scores count as equal, and the fraction of such anchors that calls for a warning."""


@contextmanager
def made_whole(output: Path, *, overwrite: bool = False, **options: Any) -> Iterator[Path]:
    """Yield a path in a scratch folder; the files written there become `output` when the block ends.

    With `overwrite` an existing table or view is replaced. Further options are those of `scratch_beside`.
    """
    with scratch_beside(output, **options) as scratch:
        if output.exists() and not overwrite:
            raise ValueError(f"{output} already exists; remove it or choose another name.")
        if output.exists() and not (output / files.MANIFEST).is_file():
            raise ValueError(f"{output} already exists and is not a table; choose another name.")
        yield scratch / output.name
        replace_output(scratch / output.name, output)


def write_table(
    output: Path,
    provenance: Mapping[str, Any],
    contents: Mapping[Direction, tuple[Mapping[str, Any], Iterable[NegativeLists]]],
    positives: Pairs,
) -> dict[str, Any]:
    """Write the files, then the manifest and a README, into the new folder `output`; return the manifest.

    `contents` has each direction's fields of the manifest and its lists, from the first anchor on. Each direction is
    written in its own thread.
    """
    shutil.rmtree(output, ignore_errors=True)  # left by an interrupted run
    output.mkdir(parents=True)
    pairs = write_positives(output, positives)
    header = {"format_version": files.FORMAT_VERSION, **provenance, "positives_sha256": pairs}
    about = {direction: {"direction": direction, **fields} for direction, (fields, _) in contents.items()}
    figures: dict[str, dict[str, Any]] = {}

    def write_some(start: int, stop: int) -> None:
        for direction in list(contents)[start:stop]:
            path, footer = output / f"{direction}.parquet", {**header, **about[direction]}
            figures[direction] = write_lists(path, footer, contents[direction][1])

    in_parallel(write_some, len(contents), parts=1)
    manifest = {**header, "directions": {direction: {**about[direction], **figures[direction]} for direction in about}}
    files.write_manifest(output, manifest)
    write_card(output)
    return manifest


def write_positives(folder: Path, positives: Pairs) -> str:
    """Write the positive pairs, by caption, then by image; return their sha256."""
    pairs = positives[np.lexsort(positives.T)]
    columns = pa.table({"caption_id": pairs[:, 1], "image_id": pairs[:, 0]}, schema=files.PAIRS)
    pq.write_table(columns, folder / files.POSITIVES, compression="zstd", write_page_checksum=True)
    return pairs_sha256(pairs)


def write_lists(path: Path, footer: Mapping[str, Any], parts: Iterable[NegativeLists]) -> dict[str, Any]:
    """Write a direction's lists; return their hash and the main figures of their hardness.

    The `bound` of lists that a search certified goes into certificates beside the table: bounds depend on the
    search, and the table does not.
    """
    content, figures, certified = files.ContentHash(), np.zeros(7), 0
    certificates: list[pa.Table] = []
    with list_writer(path, footer) as writer:
        for group in _row_groups(parts):
            writer.write_table(group.select(writer.schema.names).cast(writer.schema))
            lists = from_arrow(group)
            if lists.bound is not None:
                last = lists.scores[:, -1]
                columns = {"anchor_id": group["anchor_id"], "last_score": last, "bound": lists.bound}
                certificates.append(pa.table(columns, schema=files.CERTIFICATES))
                certified += int(are_certified(last, lists.bound).sum())
            content.add(lists)
            figures += count_figures(lists)
    if certificates:
        beside = path.with_suffix(".certificates.parquet")
        pq.write_table(pa.concat_tables(certificates), beside, compression="zstd", row_group_size=GROUP_ROWS)
    summary = {} if footer.get("scores") == "none" else summarise_figures(figures)
    if share := summary.get("collapsed_share"):
        logger.warning("%s: %s", path.stem, describe_collapse(share))
    anchors = int(figures[0])
    proven = {"certified_share": certified / anchors} if certificates else {}
    return {"anchors": anchors, "sha256": content.hexdigest(), **proven, **summary}


def are_certified(
    last: Float32[np.ndarray, " anchors"], bound: Float32[np.ndarray, " anchors"]
) -> Bool[np.ndarray, " anchors"]:
    """Return whether each list's last score clears the bound of all pairs that were not scored exactly."""
    return (last > bound) | (bound == -np.inf)


def count_figures(lists: NegativeLists) -> Float64[np.ndarray, " sums"]:
    """Sum the quantities of `summarise_figures` over lists; the sums of groups of lists add up."""
    scores, positive = lists.scores, lists.positive_score
    values = np.column_stack([scores, positive]).astype(np.float64)
    highest, lowest = np.fmax.reduce(values, axis=1), np.fmin.reduce(values, axis=1)
    is_flat = (highest - lowest <= COLLAPSED * np.abs(highest)) & (np.isfinite(values).sum(axis=1) > 1)
    counted = (np.ones(len(lists)), np.isfinite(positive), is_flat)
    summed = (*counted, scores[:, 0], scores[:, -1], positive, scores[:, 0] > positive)
    return np.array([np.nansum(column, dtype=np.float64) for column in summed])


def summarise_figures(sums: Float64[np.ndarray, " sums"]) -> dict[str, float | None]:
    """Summarise the hardness of a direction's lists, and a collapse of the teacher, as fields of the manifest."""
    rows, positives, collapsed, first, last, lowest, above = sums.tolist()
    return {
        **({"collapsed_share": round(collapsed / rows, 4)} if collapsed / rows > MOST_COLLAPSED else {}),
        "first_score_mean": round(first / rows, 4),
        "last_score_mean": round(last / rows, 4),
        "positive_score_mean": round(lowest / positives, 4) if positives else None,
        "above_positive_share": round(above / rows, 4),
    }


def list_writer(path: Path, footer: Mapping[str, Any]) -> pq.ParquetWriter:
    ids, scores, sources = (pa.list_(kind, footer["h"]) for kind in (pa.int32(), pa.float32(), pa.uint8()))
    columns = {"anchor_id": pa.int32(), "negative_ids": ids, "scores": scores, "positive_score": pa.float32()}
    columns |= {"sources": sources} if "sources" in footer else {}
    return pq.ParquetWriter(
        path,
        pa.schema(columns, metadata={"aoq": json.dumps(footer, sort_keys=True)}),
        compression="zstd",
        use_dictionary=False,  # values rarely repeat
        use_byte_stream_split=["scores.list.element"],
        write_page_checksum=True,  # a flipped byte reads as another id
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


def write_ids(table: Path, ids: Mapping[str, Sequence[str]]) -> None:
    """Write the ids of some sides, a different one for each row, into a table, and their hashes into its manifest."""
    if not ids:
        return
    manifest = files.read_manifest(table)
    counts, nouns, columns = files.count_rows(table, manifest), files.row_nouns(manifest), files.id_columns(manifest)
    hashes = {**manifest.get("ids", {})}
    for side, names in ids.items():
        require_one_each(names, f"{nouns[side]} ids", counts[side])
        rows_by_id(names, nouns[side])
        file, schema = columns[side]
        pq.write_table(pa.table([names], schema=schema), table / file, compression="zstd", write_page_checksum=True)
        hashes[side] = files.ids_sha256(names)
    files.write_manifest(table, {**manifest, "ids": hashes})
    write_card(table)
