"""Write a table: lists of both directions, their certificates if a search gave any, and the manifest last."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.scratch import publish, scratch_beside, write_atomically
from aoq.pipeline.search.lists import NegativeLists, from_arrow, to_arrow
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.files import CERTIFICATES, FORMAT_VERSION, MANIFEST, ContentHash, list_writer, write_positives
from aoq.pipeline.tables.guarantee import describe_guarantee
from aoq.pipeline.tables.pairs import Pairs
from aoq.pipeline.tables.readme import write_table_readme
from aoq.pipeline.threads import in_parallel

logger = logging.getLogger(__name__)

GROUP_ROWS = 4096
COLLAPSED, MOST_COLLAPSED = 1e-6, 0.5
"""Relative difference below which scores are taken for one, and the fraction of such anchors that is worth a word."""

Made = tuple[Mapping[str, Any], Iterable[NegativeLists]]
"""Manifest fields of a direction (its h, ...), and its lists from the first anchor on."""


def row_groups(parts: Iterable[NegativeLists]) -> Iterator[pa.Table]:
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


def write_lists(path: Path, footer: Mapping[str, Any], parts: Iterable[NegativeLists]) -> dict[str, Any]:
    """Write a direction's lists; return their hash and the main figures of their hardness.

    The `bound` of lists that a search certified goes into certificates beside the table: bounds depend on the
    search, and the table does not.
    """
    content, rows, positives, certified, collapsed, sums = ContentHash(), 0, 0, 0, 0, np.zeros(4)
    known: list[pa.Table] = []
    with list_writer(path, footer) as writer:
        for group in row_groups(parts):
            writer.write_table(group.select(writer.schema.names).cast(writer.schema))
            lists = from_arrow(group)
            scores, positive = lists.scores, lists.positive_score
            if lists.bound is not None:
                columns = {"anchor_id": group["anchor_id"], "last_score": scores[:, -1], "bound": lists.bound}
                known.append(pa.table(columns, schema=CERTIFICATES))
                certified += int(((scores[:, -1] > lists.bound) | (lists.bound == -np.inf)).sum())
            content.add(lists)
            rows += len(lists)
            collapsed += _count_collapsed(lists)
            positives += int(np.isfinite(positive).sum())
            summed = (scores[:, 0], scores[:, -1], positive, scores[:, 0] > positive)
            sums += [np.nansum(column, dtype=np.float64) for column in summed]
    if known:
        beside = path.with_suffix(".certificates.parquet")
        pq.write_table(pa.concat_tables(known), beside, compression="zstd", row_group_size=GROUP_ROWS)
    first, last, lowest, above = sums.tolist()
    if collapsed > MOST_COLLAPSED * rows:
        logger.warning("%s: %s", path.stem, describe_guarantee({"collapsed_share": collapsed / rows}).partition(";")[0])
    return {
        "anchors": rows,
        "sha256": content.hexdigest(),
        **({"certified_share": certified / rows} if known else {}),
        **({"collapsed_share": round(collapsed / rows, 4)} if collapsed > MOST_COLLAPSED * rows else {}),
        "first_score_mean": round(first / rows, 4),
        "last_score_mean": round(last / rows, 4),
        "positive_score_mean": round(lowest / positives, 4) if positives else None,
        "above_positive_share": round(above / rows, 4),
    }


def _count_collapsed(lists: NegativeLists) -> int:
    """Count the anchors whose listed and positive scores, two at least, all lie within 1e-6 of the highest."""
    scores = np.column_stack([lists.scores, lists.positive_score]).astype(np.float64)
    highest, lowest = (choose.reduce(scores, axis=1) for choose in (np.fmax, np.fmin))
    return int(((highest - lowest <= COLLAPSED * np.abs(highest)) & (np.isfinite(scores).sum(axis=1) > 1)).sum())


def write_table(
    output: Path,
    provenance: Mapping[str, Any],
    made: Mapping[Direction, tuple[Mapping[str, Any], Any]],
    positives: Pairs,
    *,
    write: Callable[[Path, Mapping[str, Any], Any], dict[str, Any]] = write_lists,
) -> dict[str, Any]:
    """Write the files, the manifest and a README last, and return the manifest.

    `write` writes a direction's file and returns its figures. Directions are written in threads of their own.
    """
    output.mkdir(parents=True, exist_ok=True)
    pairs = write_positives(output, positives)
    header = {"format_version": FORMAT_VERSION, **provenance, "positives_sha256": pairs}
    about = {direction: {"direction": direction, **said} for direction, (said, _) in made.items()}
    figures: dict[str, dict[str, Any]] = {}

    def write_some(start: int, stop: int) -> None:
        for direction in list(made)[start:stop]:
            path, footer = output / f"{direction}.parquet", {**header, **about[direction]}
            figures[direction] = write(path, footer, made[direction][1])

    in_parallel(write_some, len(made), parts=1)
    manifest = {**header, "directions": {direction: {**about[direction], **figures[direction]} for direction in made}}
    write_atomically(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())
    write_table_readme(output)
    return manifest


@contextmanager
def made_whole(output: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give a path in a scratch folder; what is made there becomes `output` once it is whole.

    With `overwrite` an existing table or view is replaced.
    """
    with scratch_beside(output) as scratch:
        made = scratch / output.name
        if output.exists() and not overwrite:
            raise ValueError(f"{output} is there already; remove it or choose another name.")
        if output.exists() and not (output / MANIFEST).is_file():
            raise ValueError(f"{output} is there already and is no table; choose another name.")
        yield made
        publish(made, output)
