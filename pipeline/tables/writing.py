"""Writing a table: lists of both directions, their certificates if a search gave any, and the manifest last."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aoq.pipeline.artifact import write_atomically
from aoq.pipeline.search.lists import NegativeLists, from_arrow, to_arrow
from aoq.pipeline.search.problem import Direction
from aoq.pipeline.tables.files import (
    CERTIFICATES,
    FORMAT_VERSION,
    MANIFEST,
    ContentHash,
    list_writer,
    said_of,
    write_positives,
)
from aoq.pipeline.tables.pairs import Pairs

GROUP_ROWS = 4096

SAID_OF_SEARCH = ("search", "guarantee", "recall", "recall_anchors", "searched_share", "scores", "sources")
"""What a manifest says of a direction besides what its lists show."""

Made = tuple[Mapping[str, Any], Iterable[pa.Table]]
"""What is said of a direction (its h, ...), and its lists from the first anchor on."""


def write_table(
    output: Path,
    provenance: Mapping[str, Any],
    made: Mapping[Direction, Made],
    positives: Pairs,
) -> None:
    """Row groups have one size, whatever the parts'; a column `bound` (`lists_table`) goes into certificates."""
    output.mkdir(parents=True, exist_ok=True)
    write_positives(output, positives)
    header = {"format_version": FORMAT_VERSION, **provenance}
    manifest: dict[str, Any] = {**header, "directions": {}}
    for direction, (said, parts) in made.items():
        about = {"direction": direction, **said}
        figures = _write_direction(output, direction, {**header, **about}, parts)
        manifest["directions"][direction] = {**about, **figures}
    write_atomically(output / MANIFEST, (json.dumps(manifest, indent=1) + "\n").encode())


def save_lists(
    output: Path,
    lists: Mapping[Direction, NegativeLists],
    positives: Pairs,
    manifest: Mapping[str, Any],
    *,
    overwrite: bool,
) -> None:
    """Write lists in memory as the new folder `output`; `manifest` says what is known of them.

    They are called exact only where their bounds, written beside them as certificates, prove it.
    """
    known = {key: value for key, value in manifest.items() if key not in ("format_version", "directions")}
    dataset = sha256(np.ascontiguousarray(positives, dtype="<i4").tobytes()).hexdigest()
    provenance = {"dataset": dataset, "teacher": {"vectors": "in memory"}, "tool": "aoq", **known}
    made: dict[Direction, Made] = {}
    for direction, one in lists.items():
        exact = one.bound is not None and bool((one.scores[:, -1] > one.bound).all())
        said = {"search": "in memory", "guarantee": "exact", **said_of(manifest, direction)}
        said = {key: value for key, value in said.items() if key in SAID_OF_SEARCH}
        if said["guarantee"] == "exact" and not exact:
            said["guarantee"] = "unproven"
        made[direction] = {"h": one.h, **said}, as_tables([one])
    with made_whole(output, overwrite=overwrite) as folder:
        write_table(folder, {**provenance, "tool_version": version("aoq")}, made, positives)


@contextmanager
def made_whole(output: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A path in a scratch folder, where to make what becomes `output` once it is whole.

    With `overwrite` a table or a view that is there gives way.
    """
    if output.exists() and not overwrite:
        raise ValueError(f"{output} is there already; remove it or choose another name.")
    if output.exists() and not (output / MANIFEST).is_file():
        raise ValueError(f"{output} is there already and is no table; choose another name.")
    folder = output.absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder to write to.")
    with TemporaryDirectory(prefix=f".{output.name}.", dir=folder) as scratch:
        made = Path(scratch) / output.name
        yield made
        if output.exists():
            os.replace(output, Path(scratch) / "replaced")
        os.replace(made, output)


def as_tables(parts: Iterable[NegativeLists]) -> Iterator[pa.Table]:
    first = 0
    for lists in parts:
        yield to_arrow(lists, first)
        first += len(lists)


def _write_direction(
    output: Path, direction: Direction, footer: Mapping[str, Any], parts: Iterable[pa.Table]
) -> dict[str, Any]:
    summary, beside = Summary(), None
    with ExitStack() as files:
        lists = files.enter_context(
            list_writer(output / f"{direction}.parquet", footer["h"], footer, "sources" in footer)
        )
        for group in row_groups(parts):
            if "bound" in group.column_names:
                beside = beside or files.enter_context(
                    pq.ParquetWriter(output / f"{direction}.certificates.parquet", CERTIFICATES, compression="zstd")
                )
                beside.write_table(certificates(group))
            summary.add(group)
            lists.write_table(group.select(lists.schema.names).cast(lists.schema))
    return summary.figures()


def certificates(group: pa.Table) -> pa.Table:
    """Each row's last score, and the bound of all that was not scored exactly.

    They stand beside the table, not in it: they tell of the search, and the table is the same whatever the search.
    """
    last = pa.array(from_arrow(group).scores[:, -1])
    return pa.table({"anchor_id": group["anchor_id"], "last_score": last, "bound": group["bound"]}, schema=CERTIFICATES)


def row_groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """All rows in groups of one size, whatever the parts': so that the same lists make the same file."""
    waiting = []
    for part in parts:
        waiting.append(part)
        while sum(map(len, waiting)) > GROUP_ROWS:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, GROUP_ROWS).combine_chunks()
            waiting = [whole.slice(GROUP_ROWS)]
    yield pa.concat_tables(waiting).combine_chunks()


class Summary:
    """A hash of the lists themselves, and the figures people look at first: how hard they are beside the positives.

    Groups of lists that a search certified have a column `bound` (`lists_table`).
    """

    def __init__(self) -> None:
        self._content = ContentHash()
        self._rows = self._positives = 0
        self._sums = np.zeros(4)
        self._certified: int | None = None

    def add(self, group: pa.Table) -> None:
        lists = from_arrow(group)
        scores, positive = lists.scores, lists.positive_score
        self._content.add(lists)
        self._rows += len(lists)
        self._positives += int(np.isfinite(positive).sum())
        columns = (scores[:, 0], scores[:, -1], positive, scores[:, 0] > positive)
        self._sums += [np.nansum(column, dtype=np.float64) for column in columns]
        if "bound" in group.column_names:
            self._certified = (self._certified or 0) + int((scores[:, -1] > group["bound"].to_numpy()).sum())

    def figures(self) -> dict[str, Any]:
        first, last, positive, above = self._sums.tolist()
        certified = {} if self._certified is None else {"certified_share": self._certified / self._rows}
        return {
            "anchors": self._rows,
            "sha256": self._content.hexdigest(),
            **certified,
            "first_score_mean": round(first / self._rows, 4),
            "last_score_mean": round(last / self._rows, 4),
            "positive_score_mean": round(positive / self._positives, 4) if self._positives else None,
            "above_positive_share": round(above / self._rows, 4),
        }
